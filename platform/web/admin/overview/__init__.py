"""The overview and the system page."""
