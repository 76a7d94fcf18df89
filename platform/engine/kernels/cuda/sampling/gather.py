"""Candidates of a filtered row, side by side; the token of a row that is drawn from all (triton).

The candidates are the tokens of the buckets in which a filter or the draw ends: mostly some dozens of a vocabulary.
"""

import triton
import triton.language as tl

from .adjust import load_adjusted, measure
from .buckets import bucket_of, load_chunks
from .layout import Buffers
from .narrow import BY_TOP_K, BY_TOP_P, DRAWN, row_uniform, within_span
from .numbers import draw_target, order
from .rows import MODE, WHOLE, integer


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
    mass = load_chunks(buffers.masses, row, 0, buffers, SHAPE)
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
    """In the order of ids within the chunk; which chunk comes first is chance, and nobody may depend on it."""
    ids = chunk * SHAPE.chunk + tl.arange(0, SHAPE.chunk)
    adjusted = load_adjusted(buffers, row, ids, SHAPE)
    distance, _ = measure(adjusted, top, buffers, row)
    bucket = bucket_of(distance, tl.load(buffers.scales + row), SHAPE)
    inside = within_span(bucket, buffers, row, BY_TOP_P) | within_span(bucket, buffers, row, DRAWN)
    inside = (inside | within_span(bucket, buffers, row, BY_TOP_K)).to(tl.int32)
    count = tl.sum(inside, 0)
    if count > 0:
        first = tl.atomic_add(buffers.listed + row, count, sem="relaxed")
        place = first + tl.cumsum(inside, 0) - 1
        kept = (inside > 0) & (place < SHAPE.room)
        place += row * SHAPE.room
        tl.store(buffers.candidates + place, order(adjusted), mask=kept)
        tl.store(buffers.candidate_ids + place, ids, mask=kept)
