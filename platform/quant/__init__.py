"""How a weight is stored and multiplied.

Knows no adapter and no model. Seams: `QuantizationConfig`, `LinearMethod`, and `choose_scheme` in `schemes`.
"""
