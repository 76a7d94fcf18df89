"""In which buckets the filters and the draw of a row end (triton).

A filter's end within a bucket is not known yet, so that the mass it keeps lies between two sums, and the next filter's
end and the drawn token in a run of buckets: a few tokens, or one value that many tokens have.
"""

from typing import Final

import triton
import triton.language as tl

from . import layout
from .buckets import load_chunks
from .layout import Buffers
from .numbers import draw_target, nucleus, uniform
from .rows import FILTERED, MODE, POSITION, SEED, TOP_K, TOP_P, integer, real

SPANS: Final = tl.constexpr(layout.SPANS)
SPAN: Final = tl.constexpr(layout.SPAN)
BY_TOP_K: Final = tl.constexpr(0)
BY_TOP_P: Final = tl.constexpr(1)
DRAWN: Final = tl.constexpr(2)


@triton.jit
def narrow(buffers: Buffers, SHAPE: tl.constexpr) -> None:
    """Grid (rows,). Writes the spans of filtered rows, and that none of their candidates is listed yet."""
    row = tl.program_id(0)
    if integer(buffers, row, MODE) != FILTERED:
        return
    if tl.abs(tl.max(load_chunks(buffers.best, row, float("-inf"), buffers, SHAPE), 0)) == float("inf"):
        return
    tl.store(buffers.listed + row, 0)
    places = row * SHAPE.buckets + tl.arange(0, SHAPE.buckets)
    masses = tl.load(buffers.bucket_masses + places)
    running = tl.cumsum(masses, 0)
    low = tl.sum(load_chunks(buffers.masses, row, 0, buffers, SHAPE), 0)
    high = low
    top_k, top_p = integer(buffers, row, TOP_K), real(buffers, row, TOP_P)
    if top_k > 0:
        counts = tl.load(buffers.bucket_counts + places)
        running_counts = tl.cumsum(counts, 0)
        store_span(buffers, row, BY_TOP_K, low * 0 + 1, low * 0, low * 0, low * 0)
        if tl.sum(counts, 0) >= top_k:
            end = tl.sum((running_counts < top_k).to(tl.int32), 0)
            before = tl.arange(0, SHAPE.buckets) < end
            above = tl.sum(tl.where(before, masses, 0), 0)
            store_span(buffers, row, BY_TOP_K, end, end, above, tl.sum(tl.where(before, counts, 0), 0))
            low, high = tl.maximum(above, 1), mass_through(end, masses, SHAPE)
    else:
        store_span(buffers, row, BY_TOP_K, low * 0 + 1, low * 0, low * 0, low * 0)
    if top_p < 1.0:
        low = nucleus(top_p, low)
        last = store_masses(buffers, row, BY_TOP_P, low, nucleus(top_p, high), masses, running, SHAPE)
        high = tl.minimum(high, mass_through(last, masses, SHAPE))
    else:
        store_span(buffers, row, BY_TOP_P, low * 0 + 1, low * 0, low * 0, low * 0)
    number = row_uniform(buffers, row)
    first, last = draw_target(number, low) + 1, draw_target(number, high) + 1
    store_masses(buffers, row, DRAWN, first, last, masses, running, SHAPE)


@triton.jit
def store_masses(
    buffers: Buffers, row: tl.tensor, WHICH: tl.constexpr, least: tl.tensor, most: tl.tensor, masses: tl.tensor,
    running: tl.tensor, SHAPE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The span of a mass that is at least `least` and at most `most`; its last bucket."""
    first = tl.minimum(tl.sum((running < least).to(tl.int32), 0), SHAPE.buckets - 1)
    last = tl.minimum(tl.sum((running < most).to(tl.int32), 0), SHAPE.buckets - 1)
    above = mass_through(first - 1, masses, SHAPE)
    store_span(buffers, row, WHICH, first, last, above, above * 0)
    return last


@triton.jit
def mass_through(last: tl.tensor, masses: tl.tensor, SHAPE: tl.constexpr) -> tl.tensor:
    return tl.sum(tl.where(tl.arange(0, SHAPE.buckets) <= last, masses, 0), 0)


@triton.jit
def store_span(
    buffers: Buffers, row: tl.tensor, WHICH: tl.constexpr, first: tl.tensor, last: tl.tensor, mass: tl.tensor,
    count: tl.tensor,
) -> None:  # fmt: skip
    place = buffers.spans + (row * SPANS + WHICH) * SPAN
    tl.store(place, first.to(tl.int64))
    tl.store(place + 1, last.to(tl.int64))
    tl.store(place + 2, mass)
    tl.store(place + 3, count.to(tl.int64))


@triton.jit
def span_number(buffers: Buffers, row: tl.tensor, WHICH: tl.constexpr, NUMBER: tl.constexpr) -> tl.tensor:
    """int64: the first bucket, the last, the mass above or the count above."""
    return tl.load(buffers.spans + (row * SPANS + WHICH) * SPAN + NUMBER)


@triton.jit
def within_span(bucket: tl.tensor, buffers: Buffers, row: tl.tensor, WHICH: tl.constexpr) -> tl.tensor:
    first, last = span_number(buffers, row, WHICH, 0), span_number(buffers, row, WHICH, 1)
    return (bucket >= first.to(tl.int32)) & (bucket <= last.to(tl.int32))


@triton.jit
def row_uniform(buffers: Buffers, row: tl.tensor) -> tl.tensor:
    """The row's one random number in [0, 1), float64."""
    return uniform(integer(buffers, row, SEED), integer(buffers, row, POSITION))
