"""Aliases at work: what each version of a route does to its callers, the guard over it, and copies for shadows.

Chooses no version: `registry/adapters/routes.py: choose` does. Seam: `Tallies`, `GuardKeeper`, `ShadowPool`, `moves`.
"""
