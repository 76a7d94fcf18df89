"""The audit page."""
