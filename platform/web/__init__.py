"""HTTP: OpenAI API, admin API, dashboard."""
