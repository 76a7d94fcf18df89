"""Serving profiles: checked when they are set, and applied to requests."""
