"""Buckets of a filtered row: equal parts of a depth below its most likely token that no filter passes (triton).

A bucket is a run of values, so that running sums over buckets say in which of them a filter ends.
"""

from typing import Final

import triton
import triton.language as tl

from .adjust import measure
from .layout import Buffers
from .numbers import ONE
from .rows import MIN_P, TOP_K, TOP_P, integer, real, short

DEEPEST: Final = tl.constexpr(31.5)
"""In temperatures: no token below has any mass."""
CLEARED: Final = tl.constexpr(128)
"""Buckets that are emptied at a time."""


@triton.jit
def reach(best: tl.tensor, top: tl.tensor, buffers: Buffers, row: tl.tensor, SHAPE: tl.constexpr) -> tl.tensor:
    """A depth in temperatures with all tokens that the filters can keep, of the chunks' largest logits [lanes]."""
    top_k, top_p = integer(buffers, row, TOP_K), real(buffers, row, TOP_P)
    depth = top * 0.0 + DEEPEST
    distances, masses = measure(best, top, buffers, row)
    if top_k > 0:
        if top_k <= tl.num_programs(1):
            # So many chunks have a token there, if not more than one.
            nth = tl.sum(tl.where(tl.arange(0, SHAPE.lanes) == top_k - 1, tl.sort(-distances, 0), 0.0), 0)
            depth = tl.minimum(depth, nth * 1.001 + 0.01)
    elif top_p < 1.0:
        # All tokens at this depth together have not the share that top-p drops, of less than the whole mass.
        least = tl.sum(masses, 0).to(tl.float64) / ONE
        share = buffers.vocabulary / ((1.0 - top_p) * least)
        depth = tl.minimum(depth, tl.log(share.to(tl.float32)) * 1.001 + 0.01)
    min_p = short(buffers, row, MIN_P)
    if min_p > 0.0:
        depth = tl.minimum(depth, 0.01 - tl.log(min_p) * 1.001)
    return depth


@triton.jit
def bucket_of(distance: tl.tensor, scale: tl.tensor, SHAPE: tl.constexpr) -> tl.tensor:
    """int32, `SHAPE.buckets` for all that is deeper than the last."""
    return tl.minimum(-distance * scale, SHAPE.buckets * 1.0).to(tl.int32)


@triton.jit
def clear_buckets(buffers: Buffers, row: tl.tensor, chunk: tl.tensor, SHAPE: tl.constexpr) -> None:
    """A chunk's share of them."""
    for first in range(chunk * CLEARED, SHAPE.buckets, tl.num_programs(1) * CLEARED):
        buckets = first + tl.arange(0, CLEARED)
        place, inside = row * SHAPE.buckets + buckets, buckets < SHAPE.buckets
        tl.store(buffers.bucket_masses + place, tl.zeros((CLEARED,), tl.int64), mask=inside)
        tl.store(buffers.bucket_counts + place, tl.zeros((CLEARED,), tl.int32), mask=inside)


@triton.jit
def load_chunks(
    table: tl.tensor, row: tl.tensor, other: tl.constexpr, buffers: Buffers, SHAPE: tl.constexpr
) -> tl.tensor:
    """A row of a table that has an entry a chunk, [lanes]; `other` past this step's last chunk."""
    lanes = tl.arange(0, SHAPE.lanes)
    inside = lanes * SHAPE.chunk < buffers.vocabulary
    return tl.load(table + row * SHAPE.chunks + lanes, mask=inside, other=other)
