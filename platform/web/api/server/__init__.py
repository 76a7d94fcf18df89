"""The admin API of the server: engine, settings, usage."""
