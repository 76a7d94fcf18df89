"""One file per adapter: what a user asks and the one right answer."""
