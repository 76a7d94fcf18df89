"""The token of each row: the largest logit, or one of those that top-k, top-p and min-p keep (triton).

The drawn token is the first, most likely first and of equals by id, whose running mass exceeds the row's uniform number
times all that is kept: as the CPU's sampler draws, by sums that are integers instead of float64.
"""

from typing import Final

import triton
import triton.language as tl

from . import layout
from .buckets import load_chunks
from .layout import Buffers
from .narrow import BY_TOP_K, BY_TOP_P, DRAWN, row_uniform, span_number
from .numbers import draw_target, nucleus
from .rows import (
    EDITS,
    FILTERED,
    GREEDY,
    IDLE,
    MODE,
    PENALIZED,
    SLOT,
    TOP_K,
    TOP_P,
    WHOLE,
    integer,
    real,
)  # fmt: skip
from .search import Source, mass_from, mass_of, nth_of_equals, search
from .sort import draw_sorted

TOKEN: Final = tl.constexpr(layout.TOKEN)
FAILED: Final = tl.constexpr(layout.FAILED)


@triton.jit
def decide(buffers: Buffers, SHAPE: tl.constexpr) -> None:
    """Grid (rows,). Writes whether a row failed (no finite largest logit, raw or edited) and its token, 0 if it did;
    counts a penalized row's token in `seen`."""
    row = tl.program_id(0)
    mode = integer(buffers, row, MODE)
    if mode == IDLE:
        return
    top = tl.max(load_chunks(buffers.best, row, float("-inf"), buffers, SHAPE), 0)
    raw_top = tl.max(load_chunks(buffers.raw_best, row, float("-inf"), buffers, SHAPE), 0)
    failed = (tl.abs(top) == float("inf")) | (tl.abs(raw_top) == float("inf"))
    token = row * 0
    if not failed:
        if mode == GREEDY:
            token = first_of_largest(buffers, row, top, SHAPE)
        if mode == WHOLE:
            token = tl.load(buffers.results + TOKEN * SHAPE.rows + row)
        if mode == FILTERED:
            token = draw_filtered(buffers, row, top, SHAPE)
        if integer(buffers, row, EDITS) & PENALIZED != 0:
            place = buffers.seen + integer(buffers, row, SLOT) * SHAPE.width + token
            tl.store(place, tl.maximum(tl.load(place), 1) + 1)
    tl.store(buffers.results + TOKEN * SHAPE.rows + row, token)
    tl.store(buffers.results + FAILED * SHAPE.rows + row, failed.to(tl.int32))


@triton.jit
def first_of_largest(buffers: Buffers, row: tl.tensor, top: tl.tensor, SHAPE: tl.constexpr) -> tl.tensor:
    largest = load_chunks(buffers.best, row, float("-inf"), buffers, SHAPE) == top
    return tl.min(tl.where(largest, load_chunks(buffers.best_ids, row, 0x7FFFFFFF, buffers, SHAPE), 0x7FFFFFFF), 0)


@triton.jit
def draw_filtered(buffers: Buffers, row: tl.tensor, top: tl.tensor, SHAPE: tl.constexpr) -> tl.tensor:
    count = tl.load(buffers.listed + row)
    total = tl.sum(load_chunks(buffers.masses, row, 0, buffers, SHAPE), 0)
    if count <= SHAPE.sorted:
        token = draw_sorted(buffers, row, top, count, total, SHAPE)
    else:
        listed = count <= SHAPE.room
        source = Source(tl.where(listed, count, buffers.vocabulary), listed, top)
        token = draw_searched(buffers, row, total, source, SHAPE)
    return token


@triton.jit
def draw_searched(buffers: Buffers, row: tl.tensor, total: tl.tensor, source: Source, SHAPE: tl.constexpr) -> tl.tensor:
    total = keep(buffers, row, total, source, SHAPE)
    needed = draw_target(row_uniform(buffers, row), total) + 1
    key, above = search(needed, source, buffers, row, DRAWN, False, SHAPE)
    mass = mass_of(key, source, buffers, row)
    return nth_of_equals((needed - above + mass - 1) // mass, key, source, buffers, row, DRAWN, SHAPE)


@triton.jit
def keep(buffers: Buffers, row: tl.tensor, total: tl.tensor, source: Source, SHAPE: tl.constexpr) -> tl.tensor:
    """The mass that is kept, of the row's `total`: of equals at the end of the nucleus that of the first."""
    top_k, top_p = integer(buffers, row, TOP_K), real(buffers, row, TOP_P)
    if span_number(buffers, row, BY_TOP_K, 0) <= span_number(buffers, row, BY_TOP_K, 1):
        low, _ = search(top_k, source, buffers, row, BY_TOP_K, True, SHAPE)
        total = mass_from(low, source, buffers, row, BY_TOP_K, SHAPE)
    if top_p < 1.0:
        needed = nucleus(top_p, total)
        key, above = search(needed, source, buffers, row, BY_TOP_P, False, SHAPE)
        mass = mass_of(key, source, buffers, row)
        total = above + (needed - above + mass - 1) // mass * mass
    return total
