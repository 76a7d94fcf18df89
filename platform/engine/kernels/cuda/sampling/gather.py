"""Candidates of a filtered row, side by side; the token of a row that is drawn from all (triton).

A filter keeps a run of the most likely tokens. The shallowest depth that surely holds them all makes the candidates,
mostly a few hundred of a whole vocabulary; where they are more than there is room for, the row itself is searched.
"""

import triton
import triton.language as tl

from .adjust import load_adjusted, measure
from .layout import Buffers
from .numbers import draw_target, nucleus, order, uniform
from .rows import MODE, POSITION, SEED, TOP_K, TOP_P, WHOLE, integer, real
from .weigh import RUNGS, depth, load_chunks, load_rung


@triton.jit
def gather(buffers: Buffers, SHAPE: tl.constexpr) -> None:
    """Grid (rows, chunks). Writes the candidates of filtered rows, and the token of the others."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    mode = integer(buffers, row, MODE)
    if mode < WHOLE:
        return
    top = tl.max(load_chunks(buffers.best, row, float("-inf"), buffers, SHAPE), 0)
    if tl.abs(top) == float("inf"):
        return
    if mode == WHOLE:
        draw_from_chunk(buffers, row, chunk, top, SHAPE)
    else:
        list_candidates(buffers, row, chunk, top, SHAPE)


@triton.jit
def draw_from_chunk(buffers: Buffers, row: tl.tensor, chunk: tl.tensor, top: tl.tensor, SHAPE: tl.constexpr) -> None:
    """The first token in the order of ids whose running mass exceeds the target, if it is one of this chunk."""
    mass = load_rung(buffers.masses, row, row * 0 + RUNGS - 1, buffers, SHAPE)
    lanes = tl.arange(0, SHAPE.lanes)
    before = tl.sum(tl.where(lanes < chunk, mass, 0), 0)
    own = tl.sum(tl.where(lanes == chunk, mass, 0), 0)
    target = draw_target(row_uniform(buffers, row), tl.sum(mass, 0))
    if (before <= target) & (target < before + own):
        ids = chunk * SHAPE.chunk + tl.arange(0, SHAPE.chunk)
        _, masses = measure(load_adjusted(buffers, row, ids, SHAPE), top, buffers, row)
        passed = before + tl.cumsum(masses, 0) <= target
        tl.store(buffers.results + row, chunk * SHAPE.chunk + tl.sum(passed.to(tl.int32), 0))


@triton.jit
def list_candidates(buffers: Buffers, row: tl.tensor, chunk: tl.tensor, top: tl.tensor, SHAPE: tl.constexpr) -> None:
    rung = choose_rung(buffers, row, SHAPE)
    counts = load_rung(buffers.counts, row, rung, buffers, SHAPE)
    if tl.sum(counts, 0) <= SHAPE.room:
        ids = chunk * SHAPE.chunk + tl.arange(0, SHAPE.chunk)
        adjusted = load_adjusted(buffers, row, ids, SHAPE)
        distance, mass = measure(adjusted, top, buffers, row)
        within = distance >= -depth(rung)
        before = tl.sum(tl.where(tl.arange(0, SHAPE.lanes) < chunk, counts, 0), 0)
        place = row * SHAPE.room + before + tl.cumsum(within.to(tl.int32), 0) - 1
        tl.store(buffers.candidates + place, order(adjusted), mask=within)
        tl.store(buffers.candidate_masses + place, mass, mask=within)
        tl.store(buffers.candidate_ids + place, ids, mask=within)


@triton.jit
def choose_rung(buffers: Buffers, row: tl.tensor, SHAPE: tl.constexpr) -> tl.tensor:
    """The shallowest with all that the filters keep: top-k tokens, or without top-k the nucleus of all mass."""
    rung = row * 0 + RUNGS - 1
    top_k = integer(buffers, row, TOP_K)
    needed = nucleus(real(buffers, row, TOP_P), tl.sum(load_rung(buffers.masses, row, rung, buffers, SHAPE), 0))
    for step in range(2, RUNGS + 1):
        tried = row * 0 + RUNGS - step
        count = tl.sum(load_rung(buffers.counts, row, tried, buffers, SHAPE), 0)
        mass = tl.sum(load_rung(buffers.masses, row, tried, buffers, SHAPE), 0)
        rung = tl.where(tl.where(top_k > 0, count >= top_k, mass >= needed), tried, rung)
    return rung


@triton.jit
def row_uniform(buffers: Buffers, row: tl.tensor) -> tl.tensor:
    """The row's one random number in [0, 1), float64."""
    return uniform(integer(buffers, row, SEED), integer(buffers, row, POSITION))
