# mypy: allow-untyped-decorators
"""Rows of activations as dot products take them: each fp32 number as the sum of two bfloat16 numbers.

Layout: [blocks of ROWS rows, steps, 2 addends, ROWS, STEP] bfloat16, then [blocks, steps, ROWS] fp32 with the sum of
each row's split inputs in each step. What lies past the inputs is zero, past the rows anything.
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
    """Floats that the split rows of x and their sums take."""
    return -(-m // ROWS) * -(-k // STEP) * (2 * BYTES // 4 + ROWS)


@njit(inline="always")
def sums_offset(m: int, k: int) -> int:
    """Bytes from the split rows to their sums."""
    return -(-m // ROWS) * -(-k // STEP) * 2 * BYTES


@intrinsic
def _split(typing: Any, source: Any, inputs: Any, high: Any, low: Any) -> Any:
    """LANES floats at `source`, zeros from `inputs` on, as bfloat16 each: the rounded value, and the rounded rest.

    Returns the sum of both over the lanes.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, inputs, high, low = arguments
        code = Code(builder)
        value = code.masked_load(code.pointer(source, 0, FLOATS), code.lanes_below(inputs))
        top = _rounded(code, value)
        rest = _rounded(code, builder.fsub(value, builder.bitcast(top, FLOATS)))
        for address, word in ((high, top), (low, rest)):
            shifted = builder.trunc(builder.lshr(word, ir.Constant(WORDS, [16] * LANES)), SHORTS)
            builder.store(shifted, code.pointer(address, 0, SHORTS), align=2)
        return code.sum(builder.fadd(builder.bitcast(top, FLOATS), builder.bitcast(rest, FLOATS)))

    return types.float32(*[types.int64] * 4), generate


def _rounded(code: Code, value: Any) -> Any:
    """The bits of fp32 numbers rounded to bfloat16's precision; what is not a number stays that."""
    builder = code.builder
    bits = builder.bitcast(value, WORDS)
    rounded = builder.add(bits, ir.Constant(WORDS, [0x8000] * LANES))
    quiet = builder.or_(bits, ir.Constant(WORDS, [0x400000] * LANES))
    kept = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    return builder.and_(kept, ir.Constant(WORDS, [0xFFFF0000] * LANES))


@njit
def _split_block(x: int, split: int, sums: int, rows: int, k: int, begin: int, end: int) -> None:
    """The steps begin to end of one block of rows."""
    for row in range(rows):
        for step in range(begin, end):
            target, total = split + step * 2 * BYTES + row * 64, np.float32(0)
            for lane in range(0, STEP, LANES):
                at = step * STEP + lane
                total += _split(x + (row * k + at) * 4, k - at, target + lane * 2, target + lane * 2 + BYTES)
            put(sums + (step * ROWS + row) * 4, total)


@njit
def _split_steps(x: int, split: int, m: int, k: int, tile: int, begin: int, end: int) -> None:
    steps, first = (k + STEP - 1) // STEP, tile * ROWS
    sums = split + sums_offset(m, k) + tile * steps * ROWS * 4
    _split_block(x + first * k * 4, split + tile * steps * 2 * BYTES, sums, min(m - first, ROWS), k, begin, end)


@njit(parallel=True)
def split_rows(x: int, split: int, m: int, k: int) -> None:
    """x [m, k] fp32 -> split, with room for split_size(m, k) floats; both are addresses."""
    steps, tiles = (k + STEP - 1) // STEP, (m + ROWS - 1) // ROWS
    blocks = (steps + BLOCK - 1) // BLOCK
    if m * k < SERIAL_INPUTS:
        for tile in range(tiles):
            _split_steps(x, split, m, k, tile, 0, steps)
    else:
        for item in prange(tiles * blocks):
            begin = item % blocks * BLOCK
            _split_steps(x, split, m, k, item // blocks, begin, min(begin + BLOCK, steps))


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
