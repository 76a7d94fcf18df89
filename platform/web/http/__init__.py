"""Transport: the HTTP server's limits, bodies, event streams, errors as OpenAI's clients read them.

Knows no route and no state. Seam: `ApiError`, `as_api_error`.
"""
