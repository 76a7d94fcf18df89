"""The two OpenAPI documents: /openapi.json of what clients of models use, /api/v1/openapi.json of the management API.

Seam: one row for each route in `public` and `admin`.
"""
