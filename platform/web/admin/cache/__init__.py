"""The cache page."""
