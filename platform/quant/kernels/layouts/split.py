# mypy: allow-untyped-decorators
"""Rows of activations as dot products take them: each fp32 number rounded to bfloat16, or as the sum of two such.

Layout: [blocks of ROWS rows, steps, 1 or 2 addends, ROWS, STEP] bfloat16. What lies past the inputs is zero, past the
rows anything.
"""

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

from ..instructions.dot_shapes import BYTES, ROWS, STEP
from ..instructions.vectors import FLOATS, INT, LANES, SHORTS, WORDS, Code, get, put

SERIAL_INPUTS: Final = 8192
"""Fewer than these are split by one thread: less than what it costs to wake another."""


@njit(inline="always")
def split_size(m: int, k: int) -> int:
    """Floats that the split rows of x take at most."""
    return -(-m // ROWS) * -(-k // STEP) * 2 * BYTES // 4


@intrinsic(prefer_literal=True)
def _split(
    typing: Any, addends: Any, scaled: Any, source: Any, factors: Any, inputs: Any, target: Any, steps: Any
) -> Any:  # fmt: skip
    """Steps of a row, from its floats at `source`, if `scaled` (literal) each times its factor, zeros from `inputs` on:
    bfloat16 each, the rounded value, and with two addends (literal) BYTES further the rounded rest. Returns the sum of
    what is stored."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, source, factors, inputs, target, steps = arguments
        code, numbers = Code(builder), addends.literal_value

        def body(step: Any, totals: list[Any]) -> list[Any]:
            first, place = builder.mul(step, INT(STEP)), builder.add(target, builder.mul(step, INT(numbers * BYTES)))
            for lane in range(0, STEP, LANES):
                at = builder.add(first, INT(lane))
                rest = code.inputs(source, factors if scaled.literal_value else None, at, inputs)
                for addend in range(numbers):
                    word = _rounded(code, rest)
                    number = builder.bitcast(word, FLOATS)
                    shifted = builder.trunc(builder.lshr(word, ir.Constant(WORDS, [16] * LANES)), SHORTS)
                    builder.store(shifted, code.pointer(place, addend * BYTES + lane * 2, SHORTS), align=2)
                    totals = [builder.fadd(totals[0], number)]
                    rest = builder.fsub(rest, number)
            return totals

        return code.sum(*code.loop(steps, [ir.Constant(FLOATS, [0.0] * LANES)], body))

    return types.float32(addends, scaled, *[types.int64] * 5), generate


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
def _split_group(
    x: int, factors: int, split: int, totals: int, m: int, k: int, group: int, addends: int, row: int, number: int
) -> None:
    steps, begin = (k + STEP - 1) // STEP, number * group
    count, first = min(group, steps - begin), begin * STEP
    source, target = x + (row * k + first) * 4, split + (row // ROWS * steps + begin) * addends * BYTES
    target += row % ROWS * 64
    if factors:
        own = factors + first * 4
        if addends == 2:
            total = _split(2, 1, source, own, k - first, target, count)
        else:
            total = _split(1, 1, source, own, k - first, target, count)
    elif addends == 2:
        total = _split(2, 0, source, factors, k - first, target, count)
    else:
        total = _split(1, 0, source, factors, k - first, target, count)
    if totals:
        put(totals + (number * m + row) * 4, total)


@njit(parallel=True)
def split_rows(
    x: int, factors: int, split: int, totals: int, m: int, k: int, group: int, addends: int
) -> None:  # fmt: skip
    """x [m, k] fp32, times factors [k] unless they are 0, -> split, with room for split_size(m, k) floats, of 1 or 2
    addends; and unless it is 0 totals [groups, m] fp32, the sums of each row's split inputs in each group of steps. All
    four are addresses."""
    steps = (k + STEP - 1) // STEP
    groups = (steps + group - 1) // group
    if m * k < SERIAL_INPUTS:
        for item in range(m * groups):
            _split_group(x, factors, split, totals, m, k, group, addends, item // groups, item % groups)
    else:
        for item in prange(m * groups):
            _split_group(x, factors, split, totals, m, k, group, addends, item // groups, item % groups)


@njit
def _total(x: int, factors: int, inputs: int) -> np.float32:
    """Step by step: sums of many numbers would lose more."""
    total = np.float32(0)
    for first in range(0, inputs, STEP):
        part = np.float32(0)
        if factors:
            for at in range(first, min(first + STEP, inputs)):
                part += get(x + at * 4) * get(factors + at * 4)
        else:
            for at in range(first, min(first + STEP, inputs)):
                part += get(x + at * 4)
        total += part
    return total


@njit(parallel=True)
def total_groups(x: int, factors: int, totals: int, m: int, k: int, inputs: int) -> None:
    """totals [groups, m] as above, of x itself times its factors; a group has so many inputs."""
    for row in prange(m):
        for first in range(0, k, inputs):
            own = factors + first * 4 if factors else 0
            total = _total(x + (row * k + first) * 4, own, min(inputs, k - first))
            put(totals + (first // inputs * m + row) * 4, total)
