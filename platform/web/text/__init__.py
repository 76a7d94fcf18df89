"""Texts to token ids and back, for the base or for what an adapter brings.

Seam: `text_processor`, and the cache that makes one when it is first needed.
"""
