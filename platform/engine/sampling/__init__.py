"""From logits to token ids and log-probabilities: masks, penalties, temperature, the draw.

Knows no sequence and no scheduler. Seam: `Sampler`, and `SampleRow` for what it must know of a choice.
"""
