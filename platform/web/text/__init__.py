"""Texts to token ids and back, for the base or for what an adapter brings.

Seam: `TextProcessor`, and `TextProcessorCache`, which makes one when it is first needed.
"""
