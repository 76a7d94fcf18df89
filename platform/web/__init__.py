"""HTTP: OpenAI API, admin API, dashboard, command line.

The API process imports no torch. Seam: `create_app` in `app`, `Server`, and `State`, made once at the start.
"""
