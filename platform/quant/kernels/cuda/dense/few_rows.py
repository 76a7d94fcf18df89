"""y = x W^T + bias for a few rows x and a weight of 16 bits (triton), which is read once and waits for nothing that is
computed before.

As many programs as the card holds share out all runs of inputs evenly, and the last of those that have a part of the
same sums adds these up in one fixed order (merge.py). torch's product is the other way; benchmarks.gpu has both, and a
card decides.
"""

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from ..card import Card, find_card, limit_registers
from ..chain import let_next_begin, prefetch_rows, wait_for_previous
from ..decode import multiply_tiles
from ..guard import require
from ..merge import add_parts, arrive_last, find_arrivals, find_part
from ..multiply import store
from ..tiles import divide_runs

MOST_ROWS: Final = 8
OUTPUTS: Final = 64
"""Of one tile: what the matrix units take on their tall side."""
RUN: Final = 128
"""Inputs of one pass of the loop."""
STAGES: Final = 4
WARPS: Final = 4
PROGRAMS: Final = 4
"""Of a multiprocessor, that keep it busy."""


class Shares(NamedTuple):
    programs: int
    runs: int
    """Of each program."""
    stages: int
    registers: int
    """Of a thread, at most."""


def share_out(outputs: int, inputs: int, card: Card) -> Shares:
    """By the shapes and the card alone: on one card the same shapes give the same bits."""
    stages = STAGES
    while stages > 2 and card.resident(shared_bytes(stages)) < 2:
        stages -= 1
    resident = max(1, min(PROGRAMS, card.resident(shared_bytes(stages))))
    work = -(-outputs // OUTPUTS) * -(-inputs // RUN)
    return Shares(*divide_runs(work, card.processors * resident), stages, limit_registers(resident, WARPS))


def shared_bytes(stages: int) -> int:
    """Weights and x of all passes, that in use too: matrix units may read it from there."""
    return stages * 2 * RUN * (OUTPUTS + MOST_ROWS)


def multiply_few_rows(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """y [R, out] is overwritten; x [R, in], R at most MOST_ROWS; weight [out, in], bias [out]: all of one 16-bit dtype
    and contiguous. The same shapes give the same bits each time."""
    (rows, inputs), outputs = x.shape, len(weight)
    tensors = y, x, weight
    fits = rows <= MOST_ROWS and y.shape == (rows, outputs) and weight.shape[1] == inputs
    require(fits and all(each.is_contiguous() for each in tensors), f"up to {MOST_ROWS} rows of the weight's sizes")
    require(all(each.dtype == x.dtype and x.element_size() == 2 for each in tensors), "all must be of one 16-bit dtype")
    require(weight.numel() < 2**31, f"{weight.numel()} weights do not fit 32 bits")
    if not rows:
        return
    card = find_card(x.device)
    shares = share_out(outputs, inputs, card)
    parts = torch.empty(shares.programs, 2, MOST_ROWS, OUTPUTS, dtype=torch.float32, device=x.device)
    few_rows[(shares.programs,)](
        y, x, weight, x if bias is None else bias, parts, find_arrivals(x.device), rows, shares.runs, INPUTS=inputs,
        OUTPUTS=outputs, WIDE=OUTPUTS, RUN=RUN, RUNS=-(-inputs // RUN), ROWS=MOST_ROWS, STAGES=shares.stages,
        BIAS=bias is not None, CHAINED=card.can_chain, launch_pdl=card.can_chain, num_warps=WARPS,
        num_stages=shares.stages, maxnreg=shares.registers, enable_fp_fusion=True,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "share"])
def few_rows(
    y: tl.tensor, x: tl.tensor, weight: tl.tensor, bias: tl.tensor, parts: tl.tensor, arrivals: tl.tensor,
    rows: tl.tensor, share: tl.tensor,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, WIDE: tl.constexpr, RUN: tl.constexpr, RUNS: tl.constexpr,
    ROWS: tl.constexpr, STAGES: tl.constexpr, BIAS: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (programs,): each takes `share` runs, of one tile of WIDE outputs after the other. parts: 2 tiles of fp32 a
    program; arrivals: of merge.py."""
    WHOLE: tl.constexpr = INPUTS % RUN == 0
    program = tl.program_id(0)
    let_next_begin(CHAINED)
    begin = program * share
    end = min(begin + share, (OUTPUTS + WIDE - 1) // WIDE * RUNS)
    outputs, lanes, row = tl.arange(0, WIDE), tl.arange(0, RUN), tl.arange(0, ROWS)
    live = row < rows
    if CHAINED:
        own = begin // RUNS * WIDE + outputs
        near = min(STAGES * RUN, INPUTS - begin % RUNS * RUN)
        prefetch_rows(weight, own * INPUTS + begin % RUNS * RUN, own < OUTPUTS, near)
    wait_for_previous(CHAINED)
    for tile in tl.range(begin // RUNS, tl.cdiv(end, RUNS), num_stages=1, disable_licm=True):
        tile_begin = tile * RUNS
        first, last = max(begin - tile_begin, 0), min(end - tile_begin, RUNS)
        own = tile * WIDE + outputs
        total = tl.zeros((WIDE, ROWS), tl.float32)
        for run in tl.range(first, last, num_stages=STAGES):
            places = run * RUN + lanes
            inside = (places < INPUTS) | WHOLE
            w = tl.load(
                weight + own[:, None] * INPUTS + places[None, :], mask=(own < OUTPUTS)[:, None] & inside[None, :],
                other=0.0,
            )  # fmt: skip
            values = x + row[:, None] * INPUTS + places[None, :]
            total = multiply_tiles(w, tl.load(values, mask=live[:, None] & inside[None, :], other=0.0).T, total)
        if last - first == RUNS:
            store(y, total, bias, row, live, own, OUTPUTS, OUTPUTS, BIAS)
        else:
            part = find_part(parts, program, share, tile_begin, WIDE * ROWS)
            tl.store(part + row[:, None] * WIDE + outputs[None, :], total.T, mask=live[:, None])
            first_program, last_program = tile_begin // share, (tile_begin + RUNS - 1) // share
            if arrive_last(arrivals + first_program, last_program - first_program):
                add_parts(
                    y, parts, bias, first_program, last_program, share, tile_begin, 0, rows, tile * WIDE,
                    OUTPUTS, OUTPUTS, WIDE, ROWS, BIAS,
                )  # fmt: skip
