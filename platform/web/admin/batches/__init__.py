"""The batches page."""
