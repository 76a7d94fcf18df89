"""Sums that several programs share (triton): each leaves its part in memory, and the last to arrive adds the parts up,
first to last. So the same shapes give the same bits, whichever program is last."""

from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl

from .guard import require
from .tiles import MOST_PROGRAMS

PART_ROWS: Final = tl.constexpr(8)
"""Rows that are added up at a time."""
AHEAD: Final = tl.constexpr(4)
"""Parts that are asked for at once."""


@cache
def find_arrivals(device: torch.device) -> torch.Tensor:
    """[MOST_PROGRAMS] int32, made and zeroed once: each launch leaves zeros. Launches of a device that take it follow
    one another on one stream."""
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    require(not capturing, "a graph's memory is no place for what other launches use too: call it once before")
    return torch.zeros(MOST_PROGRAMS, dtype=torch.int32, device=device)


@triton.jit
def arrive_last(arrivals: tl.tensor, others: tl.tensor) -> tl.tensor:
    """Whether `others` programs have come here before. What they stored until then can be read, past the first cache;
    the count begins anew."""
    tl.debug_barrier()  # all threads of this program have stored
    is_last = tl.atomic_add(arrivals, 1, sem="acq_rel", scope="gpu") == others
    if is_last:
        tl.store(arrivals, 0)
    return is_last


@triton.jit
def find_part(
    parts: tl.tensor, program: tl.tensor, share: tl.tensor, begin: tl.tensor, SIZE: tl.constexpr
) -> tl.tensor:
    """Where a program leaves its part of the tile whose first run is `begin`: there is room for two, as it may end one
    tile and begin another."""
    return parts + (2 * program + (program * share < begin)) * SIZE


@triton.jit
def add_parts(
    y: tl.tensor, parts: tl.tensor, bias: tl.tensor, first: tl.tensor, last: tl.tensor, share: tl.tensor,
    begin: tl.tensor, row: tl.tensor, rows: tl.tensor, output: tl.tensor,
    OUTPUTS: tl.constexpr, STRIDE: tl.constexpr, WIDE: tl.constexpr, TILE_ROWS: tl.constexpr, BIAS: tl.constexpr,
) -> None:  # fmt: skip
    """y [rows, STRIDE] from row `row` and output `output` on: the sum of the parts [TILE_ROWS, WIDE] of programs
    `first` to `last`, and bias."""
    lanes = tl.arange(0, WIDE)
    inside = output + lanes < OUTPUTS
    for chunk in tl.range(0, min(TILE_ROWS, rows - row), PART_ROWS, num_stages=1):
        lines = chunk + tl.arange(0, PART_ROWS)
        live = (row + lines < rows)[:, None] & inside[None, :]
        places = lines[:, None] * WIDE + lanes[None, :]
        total = tl.zeros((PART_ROWS, WIDE), tl.float32)
        for several in tl.range(first, last + 1, AHEAD, num_stages=1):
            for index in tl.static_range(AHEAD):
                part = find_part(parts, several + index, share, begin, WIDE * TILE_ROWS)
                held = live & (lines * 0 + several + index <= last)[:, None]
                total += tl.load(part + places, mask=held, other=0.0, cache_modifier=".cg")
        if BIAS:
            total += tl.load(bias + output + lanes, mask=inside, other=0.0).to(tl.float32)[None, :]
        results = y + (row + lines)[:, None] * STRIDE + (output + lanes)[None, :]
        tl.store(results, total.to(y.dtype.element_ty), mask=live)
