"""Partial results of a tile become one: the last of its programs to arrive adds them all up (triton). Shapes as in
attend.py.

Each part is brought to the largest score so far, in the order of the keys, whichever program is the last: the same
parts give the same bits.
"""

from typing import Final

import triton
import triton.language as tl

from .keys import LOWEST

AT_ONCE: Final = tl.constexpr(4096)
"""Numbers of partial results that are on their way from memory at a time."""


@triton.jit
def merge(
    sums: tl.tensor, states: tl.tensor, first: tl.tensor, step: tl.tensor, parts: tl.tensor, live: tl.tensor,
    lanes: tl.tensor, inner: tl.tensor,
    SIZE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """(sum of weights [rows], weighted values [rows, padded D]) of `parts` partial results. first [rows] int64: a row's
    place in that of the first one, counted in heads; step: between two of them. live [rows], inner [padded D]: which
    there are."""
    rows: tl.constexpr = first.shape[0]
    some: tl.constexpr = max(1, AT_ONCE // (rows * lanes.shape[0]))
    top, total = tl.full((rows,), LOWEST, tl.float32), tl.zeros((rows,), tl.float32)
    result = tl.zeros((rows, lanes.shape[0]), tl.float32)
    for done in range(0, parts, some):
        part = done + tl.arange(0, some)
        there = (part < parts)[:, None] & live[None, :]
        places = first[None, :] + part[:, None].to(tl.int64) * step
        tops = tl.load(states + places * 2, mask=there, other=LOWEST, cache_modifier=".cg")
        totals = tl.load(states + places * 2 + 1, mask=there, other=0.0, cache_modifier=".cg")
        numbers = sums + places[:, :, None] * SIZE + lanes[None, None, :]
        values = tl.load(
            numbers, mask=there[:, :, None] & inner[None, None, :], other=0.0, cache_modifier=".cg"
        )  # fmt: skip
        higher = tl.maximum(top, tl.max(tops, 0))
        less, shares = tl.exp2(top - higher), tl.exp2(tops - higher[None, :])
        total = total * less + tl.sum(totals * shares, 0)
        result = result * less[:, None] + tl.sum(values * shares[:, :, None], 0)
        top = higher
    return total, result
