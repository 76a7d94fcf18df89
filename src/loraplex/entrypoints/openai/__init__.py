"""`python -m loraplex.entrypoints.openai.api_server`."""
