"""How each kind of quantized checkpoint packs a linear, and what makes it unreadable.

Knows no device. Seam: `tensor_specs` and `read_weight` in `read`.
"""
