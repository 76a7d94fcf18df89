"""Aliases at work: what each version of a route does to its callers, the guard over it, and copies for shadows."""
