"""What one step of dot products takes: the shape of a matrix register, which vector registers follow."""

from typing import Final

ROWS: Final = 16
"""Most rows of activations."""
STEP: Final = 32
"""Inputs of one step in bfloat16; of bytes twice as many."""
BYTES: Final = ROWS * 64
"""Of the rows; the weights of a panel's 32 outputs take twice as many."""
BFLOAT16, INTEGER = range(2)
ADDENDS: Final = (2, 1)
"""Numbers that stand for one activation and meet the same weights, by kind of product."""
