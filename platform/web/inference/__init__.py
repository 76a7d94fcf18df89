"""From the `model` a client names to running generations and their text.

Knows no API format. Seam: `find_served`, `start_generations`, `Generation`.
"""
