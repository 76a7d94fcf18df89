"""The command `loraplex`."""
