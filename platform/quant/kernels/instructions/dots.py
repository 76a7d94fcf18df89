# mypy: allow-untyped-decorators
"""Dot products of short numbers, as the processor has instructions for them: in matrix registers (AMX) or in vector
registers (AVX-512 with BF16 and VNNI). The one door for the kernels that multiply by them; where there are only those
of words (AVX2), `avx2_linear.py` does.

Numbers of one step, of up to ROWS rows:
    bfloat16    sums [rows, 32] fp32 += rows [rows, STEP] bfloat16 times weights [16, 32, 2] bfloat16, pairs of inputs
    integers    sums [rows, 32] int32 += rows [rows, 64] int8 times weights [16, 32, 4] uint8, four inputs each
Each sum adds up its products in the same order whatever the number of rows.
"""

from typing import Final

from . import amx_dots, avx2_dots, avx512_dots
from .dot_shapes import BYTES, ROWS, STEP

__all__ = [
    "BYTES",
    "DESCRIPTION",
    "HAS_AVX2",
    "HAS_BFLOAT16",
    "HAS_INTEGERS",
    "HAS_MATRIX",
    "REGISTERS",
    "ROWS",
    "STEP",
    "add_half_bytes",
    "add_integers",
    "done",
    "multiply_bfloat16",
    "next_rows",
    "ready",
]

HAS_MATRIX: Final = amx_dots.HAS_MATRIX
_chosen: Final = amx_dots if HAS_MATRIX else avx512_dots
HAS_BFLOAT16: Final = HAS_MATRIX or avx512_dots.HAS_BFLOAT16
HAS_AVX2: Final = avx2_dots.HAS_INTEGERS
HAS_INTEGERS: Final = HAS_MATRIX or avx512_dots.HAS_INTEGERS or HAS_AVX2
REGISTERS: Final = "matrix registers (AMX)" if HAS_MATRIX else "AVX2" if HAS_AVX2 else "AVX-512"
DESCRIPTION: Final = f"dot products in {REGISTERS}"
ready = _chosen.ready
"""(rows): before the first product, with the number of rows that most of them have, up to ROWS."""
done = _chosen.done
"""(): after the last."""
multiply_bfloat16 = _chosen.multiply_bfloat16
"""(rows, usual, start, pitch, x, x_block, weights, steps, y, stride, following): y [rows, 32] = start + x W^T.

Addresses and bytes but for the first two and the steps.

rows, usual:   1 to ROWS, or 2 * ROWS; the number that `ready` was told
start:         of the sums to begin with, rows `pitch` apart (0: one row for all)
x:             [steps, ROWS, 64 bytes] of the first ROWS rows, the others' `x_block` further
weights:       [steps, 16, 32, 4 bytes]
y:             rows `stride` apart
following:     weights to be brought near after these, which come from memory; 0: these are near
"""
add_integers = _chosen.add_integers
"""(rows, usual, x, x_block, weights, steps, following, scales, zeros, row_scales, row_sums, bias, y, sums):
y [tokens, 32] = (bias, or y where bias is 0) + x W^T of a block of integers.

rows:          two of each token, its high and its low bytes; any number; x and what follows as for bfloat16
scales, ...:   of the block's group and rows, as int16_activations.Products has them
sums:          room for two times [2 * ROWS, 32] int32
"""
add_half_bytes = avx512_dots.add_half_bytes
"""The same with weights of 4 bits, two in a byte as `integer_linear.py` has them."""
next_rows = amx_dots.next_rows
"""(left): how many of the rows that are left the next product of bfloat16 should have."""
