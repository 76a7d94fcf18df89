"""From the `model` a client names to running generations and their text.

Knows no API format. Seam: `resolve_model`, `start_generations`, `Generation`.
"""
