"""The decoder: its configuration, weights, layers and linears. In `linear`, base weights and adapters meet.

Knows no request and no scheduler. Seam: `ModelConfig`, `DecoderLoader`, `Decoder`.
"""
