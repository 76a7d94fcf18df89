"""Quantized weights in one form, whichever packing they come from; and rounding floats to that form.

Knows no device and no kernel. Seam: `IntegerWeight`, `Float8Weight`.
"""
