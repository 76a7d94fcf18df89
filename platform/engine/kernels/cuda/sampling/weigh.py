"""What a draw must know of each chunk of a row: its largest logits, its mass, and where in the row's depth that lies
(triton).

Sums over chunks are taken by whoever reads them; those over buckets are of integers, the same in any order.
"""

import triton
import triton.language as tl

from .adjust import adjust, load_raw, measure
from .buckets import bucket_of, clear_buckets, load_chunks, reach
from .layout import Buffers
from .numbers import exponential
from .rows import FILTERED, IDLE, LOGPROBS, MODE, TOP_K, WHOLE, integer


@triton.jit
def survey(buffers: Buffers, SHAPE: tl.constexpr) -> None:
    """Grid (rows, chunks). Writes best, best_ids, raw_best and, where they are wanted, raw_sums; empties buckets."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    mode = integer(buffers, row, MODE)
    if mode == IDLE:
        return
    if mode == FILTERED:
        clear_buckets(buffers, row, chunk, SHAPE)
    ids = chunk * SHAPE.chunk + tl.arange(0, SHAPE.chunk)
    place = row * SHAPE.chunks + chunk
    raw = load_raw(buffers, row, ids)
    adjusted = adjust(raw, buffers, row, ids, SHAPE)
    adjusted = tl.where(adjusted == adjusted, adjusted, float("inf"))
    top = tl.max(adjusted, 0)
    tl.store(buffers.best + place, top)
    tl.store(buffers.best_ids + place, tl.min(tl.where(adjusted == top, ids, 0x7FFFFFFF), 0))
    raw = tl.where(raw == raw, raw, float("inf"))
    raw_top = tl.max(raw, 0)
    tl.store(buffers.raw_best + place, raw_top)
    if integer(buffers, row, LOGPROBS) >= 0:
        weights = tl.where(raw > float("-inf"), exponential(raw - raw_top), 0.0)
        tl.store(buffers.raw_sums + place, tl.sum(weights, 0))


@triton.jit
def weigh(buffers: Buffers, SHAPE: tl.constexpr) -> None:
    """Grid (rows, chunks). Writes masses of rows that are drawn; of filtered ones also the buckets and their scale."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    mode = integer(buffers, row, MODE)
    if mode < WHOLE:
        return
    ids = chunk * SHAPE.chunk + tl.arange(0, SHAPE.chunk)
    # Before it is known whether they are needed, so that two waits are one.
    raw = load_raw(buffers, row, ids)
    best = load_chunks(buffers.best, row, float("-inf"), buffers, SHAPE)
    top = tl.max(best, 0)
    if tl.abs(top) == float("inf"):
        return
    distance, mass = measure(adjust(raw, buffers, row, ids, SHAPE), top, buffers, row)
    tl.store(buffers.masses + row * SHAPE.chunks + chunk, tl.sum(mass, 0))
    if mode == FILTERED:
        scale = tl.div_rn(SHAPE.buckets * 1.0, reach(best, top, buffers, row, SHAPE))
        if chunk == 0:
            tl.store(buffers.scales + row, scale)
        bucket = bucket_of(distance, scale, SHAPE)
        place, inside = row * SHAPE.buckets + bucket, bucket < SHAPE.buckets
        tl.atomic_add(buffers.bucket_masses + place, mass, mask=inside & (mass > 0), sem="relaxed")
        if integer(buffers, row, TOP_K) > 0:
            one = tl.full((SHAPE.chunk,), 1, tl.int32)
            tl.atomic_add(buffers.bucket_counts + place, one, mask=inside, sem="relaxed")
