"""The token of each row: the largest logit, or one of those that top-k, top-p and min-p keep (triton).

The drawn token is the first, most likely first and of equals by id, whose running mass exceeds the row's uniform number
times all that is kept: as the CPU's sampler draws, by sums that are integers instead of float64.
"""

from typing import Final

import triton
import triton.language as tl

from . import layout
from .gather import choose_rung, row_uniform
from .layout import Buffers
from .numbers import draw_target, nucleus, order
from .rows import (
    EDITS,
    FILTERED,
    GREEDY,
    IDLE,
    MODE,
    PENALIZED,
    SLOT,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    WHOLE,
    integer,
    real,
    short,
)  # fmt: skip
from .search import Source, mass_from, search, take_equals
from .weigh import RUNGS, depth, load_chunks, load_rung

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
    rung = choose_rung(buffers, row, SHAPE)
    within = tl.sum(load_rung(buffers.counts, row, rung, buffers, SHAPE), 0)
    listed = within <= SHAPE.room
    source = Source(tl.where(listed, within, buffers.vocabulary), listed, top)
    low, total = keep(buffers, row, rung, within, source, SHAPE)
    target = draw_target(row_uniform(buffers, row), total)
    key, above = search(target + 1, low, source, buffers, row, False, SHAPE)
    _, token = take_equals(target + 1, key, above, source, buffers, row, SHAPE)
    if listed:
        token = tl.load(buffers.candidate_ids + row * SHAPE.room + token)
    return token


@triton.jit
def keep(
    buffers: Buffers, row: tl.tensor, rung: tl.tensor, within: tl.tensor, source: Source, SHAPE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The least value that is kept, as its key, and the mass that is: of equals at the end of the nucleus the first."""
    low = order(source.top - depth(rung) * short(buffers, row, TEMPERATURE) * 1.001).to(tl.int64)
    total = tl.sum(load_rung(buffers.masses, row, row * 0 + RUNGS - 1, buffers, SHAPE), 0)
    top_k, top_p = integer(buffers, row, TOP_K), real(buffers, row, TOP_P)
    if (top_k > 0) & (top_k <= within):
        low, _ = search(top_k, low, source, buffers, row, True, SHAPE)
        total = mass_from(low, source, buffers, row, SHAPE)
    if top_p < 1.0:
        needed = nucleus(top_p, total)
        low, above = search(needed, low, source, buffers, row, False, SHAPE)
        total, _ = take_equals(needed, low, above, source, buffers, row, SHAPE)
    return low, total
