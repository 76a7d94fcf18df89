"""The admin JSON API under /api/v1."""
