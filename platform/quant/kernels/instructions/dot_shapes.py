"""What one step of dot products takes: the shape of a matrix register, which vector registers follow."""

from typing import Final

ROWS: Final = 16
"""Most rows of activations."""
STEP: Final = 32
"""Inputs of one step in bfloat16; of bytes twice as many."""
BYTES: Final = ROWS * 64
"""Of the rows; the weights of a panel's 32 outputs take twice as many."""
BFLOAT16, SPLIT_BFLOAT16, INTEGER, HALF_BYTE = range(4)
"""Kinds of product. Two weights of the last are in one byte, as `integer_linear.py` has them."""
ADDENDS: Final = (1, 2, 1, 1)
"""By kind: the numbers that stand for one activation and meet the same weights."""
