"""The two OpenAPI documents: /openapi.json of OpenAI's and Anthropic's API, /api/v1/openapi.json of the management API.

Seam: one row for each route in `public` and `admin`.
"""
