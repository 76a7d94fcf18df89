"""The part of an adapter's page that shares an alias's callers out among versions."""
