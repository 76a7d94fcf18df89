"""The drawn token of a row with few candidates: they are sorted, and running sums show where each filter ends (triton).

Most rows are drawn so; `search` finds the same for any number of candidates.
"""

from typing import Final

import triton
import triton.language as tl

from . import layout
from .adjust import measure
from .buckets import bucket_of
from .layout import Buffers
from .narrow import BY_TOP_K, BY_TOP_P, DRAWN, row_uniform, span_number, within_span
from .numbers import draw_target, nucleus, unorder
from .rows import TOP_K, TOP_P, integer, real

LAST_ID: Final = tl.constexpr(layout.MOST_TOKENS - 1)
"""Ones in as many bits as an id has."""
BITS: Final = tl.constexpr((layout.MOST_TOKENS - 1).bit_length())
LOWEST_KEY: Final = tl.constexpr(-2139095041)
"""Of -inf."""
NOTHING: Final = tl.constexpr(-(1 << 60))
"""Below every pair of a key and an id."""


@triton.jit
def draw_sorted(
    buffers: Buffers, row: tl.tensor, top: tl.tensor, count: tl.tensor, total: tl.tensor, SHAPE: tl.constexpr
) -> tl.tensor:
    """The token, of at most `SHAPE.sorted` candidates; total: the mass of the row."""
    places = tl.arange(0, SHAPE.sorted)
    source, inside = row * SHAPE.room + places, places < count
    keys = tl.load(buffers.candidates + source, mask=inside, other=LOWEST_KEY).to(tl.int64)
    ids = tl.load(buffers.candidate_ids + source, mask=inside, other=LAST_ID)
    # The larger value first, then the lower id.
    both = tl.sort((keys << BITS) | (ids ^ LAST_ID), 0, descending=True)
    keys = both >> BITS
    distance, mass = measure(unorder(keys.to(tl.int32)), top, buffers, row)
    bucket = bucket_of(distance, tl.load(buffers.scales + row), SHAPE)
    top_k, top_p = integer(buffers, row, TOP_K), real(buffers, row, TOP_P)
    if span_number(buffers, row, BY_TOP_K, 0) <= span_number(buffers, row, BY_TOP_K, 1):
        own = within_span(bucket, buffers, row, BY_TOP_K)
        reached = span_number(buffers, row, BY_TOP_K, 3) + tl.cumsum(own.to(tl.int32), 0) >= top_k
        last = tl.max(tl.where(own & reached, keys, LOWEST_KEY), 0)
        total = span_number(buffers, row, BY_TOP_K, 2) + tl.sum(tl.where(own & (keys >= last), mass, 0), 0)
    if top_p < 1.0:
        own = tl.where(within_span(bucket, buffers, row, BY_TOP_P), mass, 0)
        above = span_number(buffers, row, BY_TOP_P, 2)
        before = above + tl.cumsum(own, 0) - own
        total = above + tl.sum(tl.where(before < nucleus(top_p, total), own, 0), 0)
    target = draw_target(row_uniform(buffers, row), total)
    own = within_span(bucket, buffers, row, DRAWN)
    running = span_number(buffers, row, DRAWN, 2) + tl.cumsum(tl.where(own, mass, 0), 0)
    drawn = tl.max(tl.where(own & (running > target), both, NOTHING), 0)
    return ((drawn & LAST_ID) ^ LAST_ID).to(tl.int32)
