# mypy: allow-untyped-decorators
"""Rows of activations as dot products take them: each fp32 number rounded to bfloat16, or as the sum of two such.

Layout: [blocks of ROWS rows, steps, 1 or 2 addends, ROWS, STEP] bfloat16, and from sums_offset on [blocks, steps, ROWS]
fp32 with the sum of each row's split inputs in each step. What lies past the inputs is zero, past the rows anything.
"""

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

from .dot_shapes import BYTES, ROWS, STEP
from .vectors import FLOATS, LANES, SHORTS, WORDS, Code, get, put

BLOCK: Final = 16
"""Steps that a thread splits at a time."""
SERIAL_INPUTS: Final = 8192
"""Fewer than these are split by one thread: less than what it costs to wake another."""


def split_size(m: int, k: int) -> int:
    """Floats that the split rows of x and their sums take at most."""
    return -(-m // ROWS) * -(-k // STEP) * (2 * BYTES // 4 + ROWS)


@njit(inline="always")
def sums_offset(m: int, k: int) -> int:
    """Bytes from the split rows to their sums."""
    return -(-m // ROWS) * -(-k // STEP) * 2 * BYTES


@intrinsic(prefer_literal=True)
def _split(typing: Any, addends: Any, source: Any, inputs: Any, target: Any) -> Any:
    """LANES floats at `source`, zeros from `inputs` on, as bfloat16 each: the rounded value, and with two addends
    (literal) BYTES further the rounded rest. Returns the sum of what is stored."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, source, inputs, target = arguments
        code = Code(builder)
        value = code.masked_load(code.pointer(source, 0, FLOATS), code.lanes_below(inputs))
        total, rest = None, value
        for addend in range(addends.literal_value):
            word = _rounded(code, rest)
            number = builder.bitcast(word, FLOATS)
            shifted = builder.trunc(builder.lshr(word, ir.Constant(WORDS, [16] * LANES)), SHORTS)
            builder.store(shifted, code.pointer(target, addend * BYTES, SHORTS), align=2)
            total = number if total is None else builder.fadd(total, number)
            rest = builder.fsub(rest, number)
        return code.sum(total)

    return types.float32(addends, *[types.int64] * 3), generate


def _rounded(code: Code, value: Any) -> Any:
    """The bits of fp32 numbers rounded to nearest even in bfloat16; what is not a number stays that."""
    builder = code.builder
    bits = builder.bitcast(value, WORDS)
    odd = builder.and_(builder.lshr(bits, ir.Constant(WORDS, [16] * LANES)), ir.Constant(WORDS, [1] * LANES))
    rounded = builder.add(builder.add(bits, odd), ir.Constant(WORDS, [0x7FFF] * LANES))
    quiet = builder.or_(bits, ir.Constant(WORDS, [0x400000] * LANES))
    kept = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    return builder.and_(kept, ir.Constant(WORDS, [0xFFFF0000] * LANES))


@njit
def _split_block(x: int, split: int, sums: int, rows: int, k: int, begin: int, end: int, addends: int) -> None:
    """The steps begin to end of one block of rows."""
    for row in range(rows):
        for step in range(begin, end):
            target, total = split + step * addends * BYTES + row * 64, np.float32(0)
            for lane in range(0, STEP, LANES):
                at = step * STEP + lane
                if addends == 2:
                    total += _split(2, x + (row * k + at) * 4, k - at, target + lane * 2)
                else:
                    total += _split(1, x + (row * k + at) * 4, k - at, target + lane * 2)
            put(sums + (step * ROWS + row) * 4, total)


@njit
def _split_steps(x: int, split: int, m: int, k: int, tile: int, begin: int, end: int, addends: int) -> None:
    steps, first = (k + STEP - 1) // STEP, tile * ROWS
    sums = split + sums_offset(m, k) + tile * steps * ROWS * 4
    target = split + tile * steps * addends * BYTES
    _split_block(x + first * k * 4, target, sums, min(m - first, ROWS), k, begin, end, addends)


@njit(parallel=True)
def split_rows(x: int, split: int, m: int, k: int, addends: int) -> None:
    """x [m, k] fp32 -> split, with room for split_size(m, k) floats; both are addresses. 1 or 2 addends."""
    steps, tiles = (k + STEP - 1) // STEP, (m + ROWS - 1) // ROWS
    blocks = (steps + BLOCK - 1) // BLOCK
    if m * k < SERIAL_INPUTS:
        for tile in range(tiles):
            _split_steps(x, split, m, k, tile, 0, steps, addends)
    else:
        for item in prange(tiles * blocks):
            begin = item % blocks * BLOCK
            _split_steps(x, split, m, k, item // blocks, begin, min(begin + BLOCK, steps), addends)


@njit
def _sum_steps(x: int, sums: int, m: int, k: int, tile: int) -> None:
    steps = (k + STEP - 1) // STEP
    for row in range(tile * ROWS, min(tile * ROWS + ROWS, m)):
        for step in range(steps):
            total = np.float32(0)
            for at in range(step * STEP, min(step * STEP + STEP, k)):
                total += get(x + (row * k + at) * 4)
            put(sums + ((tile * steps + step) * ROWS + row % ROWS) * 4, total)


@njit(parallel=True)
def sum_steps(x: int, sums: int, m: int, k: int) -> None:
    """The sums as beside the split rows, of x itself."""
    tiles = (m + ROWS - 1) // ROWS
    if m * k < SERIAL_INPUTS:
        for tile in range(tiles):
            _sum_steps(x, sums, m, k, tile)
    else:
        for tile in prange(tiles):
            _sum_steps(x, sums, m, k, tile)
