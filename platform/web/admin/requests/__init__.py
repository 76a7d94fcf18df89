"""The requests page."""
