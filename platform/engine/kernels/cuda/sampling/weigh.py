"""What a draw must know of each chunk of a row: its largest logits, and its tokens and mass at several depths (triton).

Sums over chunks are taken by whoever reads them, always in the same order.
"""

from typing import Final

import triton
import triton.language as tl

from . import layout
from .adjust import adjust, load_adjusted, load_raw, measure
from .layout import Buffers
from .numbers import exponential
from .rows import IDLE, LOGPROBS, MODE, WHOLE, integer

RUNGS: Final = tl.constexpr(layout.RUNGS)


@triton.jit
def survey(buffers: Buffers, SHAPE: tl.constexpr) -> None:
    """Grid (rows, chunks). Writes best, best_ids, raw_best and, where they are wanted, raw_sums."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    if integer(buffers, row, MODE) == IDLE:
        return
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
    """Grid (rows, chunks). Writes counts and masses of rows that are drawn; where no filter is, the last rung alone."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    mode = integer(buffers, row, MODE)
    if mode < WHOLE:
        return
    top = tl.max(load_chunks(buffers.best, row, float("-inf"), buffers, SHAPE), 0)
    if tl.abs(top) == float("inf"):
        return
    ids = chunk * SHAPE.chunk + tl.arange(0, SHAPE.chunk)
    distance, mass = measure(load_adjusted(buffers, row, ids, SHAPE), top, buffers, row)
    for index in range(tl.where(mode == WHOLE, RUNGS - 1, 0), RUNGS):
        rung = row * 0 + index
        within = distance >= -depth(rung)
        place = (row * RUNGS + rung) * SHAPE.chunks + chunk
        tl.store(buffers.counts + place, tl.sum(within.to(tl.int32), 0))
        tl.store(buffers.masses + place, tl.sum(tl.where(within, mass, 0), 0))


@triton.jit
def load_chunks(
    table: tl.tensor, line: tl.tensor, other: tl.constexpr, buffers: Buffers, SHAPE: tl.constexpr
) -> tl.tensor:
    """A line of a table that has an entry a chunk, [lanes]; `other` past this step's last chunk."""
    lanes = tl.arange(0, SHAPE.lanes)
    inside = lanes * SHAPE.chunk < buffers.vocabulary
    return tl.load(table + line * SHAPE.chunks + lanes, mask=inside, other=other)


@triton.jit
def load_rung(table: tl.tensor, row: tl.tensor, rung: tl.tensor, buffers: Buffers, SHAPE: tl.constexpr) -> tl.tensor:
    """counts or masses of all chunks [lanes] at one depth."""
    return load_chunks(table, row * RUNGS + rung, 0, buffers, SHAPE)


@triton.jit
def depth(rung: tl.tensor) -> tl.tensor:
    """2^rung: how far below the most likely token, in temperatures."""
    return ((rung + 127) << 23).to(tl.float32, bitcast=True)
