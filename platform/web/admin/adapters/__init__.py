"""Pages of adapters: the list, one adapter, the upload, the serving profile."""
