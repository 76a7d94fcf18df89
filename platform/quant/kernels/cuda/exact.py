"""y = x W^T + bias in float32 throughout (triton), for what is small and decides: routers.

A row's sums have one order, whatever other rows there are: the same bits in every batch.
"""

import torch
import triton
import triton.language as tl

from .chain import can_chain, let_next_begin, wait_for_previous
from .tiles import EXACT


def multiply_exact(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [T, in] contiguous, weight [out, in], bias [out], all float32 -> [T, out]."""
    (rows, inputs), outputs, chained = x.shape, len(weight), can_chain(x.device)
    y = torch.empty(rows, outputs, dtype=torch.float32, device=x.device)
    if rows:
        exact[triton.cdiv(rows, EXACT.rows), triton.cdiv(outputs, EXACT.columns)](
            y, x, weight, x if bias is None else bias, rows, INPUTS=inputs, OUTPUTS=outputs, BIAS=bias is not None,
            ROWS=EXACT.rows, COLUMNS=EXACT.columns, STEP=EXACT.step, STAGES=EXACT.stages, CHAINED=chained,
            launch_pdl=chained, num_warps=EXACT.warps, enable_fp_fusion=True,
        )  # fmt: skip
    return y


@triton.jit(do_not_specialize=["rows"])
def exact(
    y: tl.tensor, x: tl.tensor, weight: tl.tensor, bias: tl.tensor, rows: tl.tensor,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STEP: tl.constexpr, STAGES: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (blocks of rows, blocks of outputs)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    live, inside = row < rows, column < OUTPUTS
    let_next_begin(CHAINED)
    wait_for_previous(CHAINED)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in tl.range(0, INPUTS, STEP, num_stages=STAGES):
        places = first + tl.arange(0, STEP)
        within = (places < INPUTS) | (INPUTS % STEP == 0)
        values = tl.load(
            x + row.to(tl.int64)[:, None] * INPUTS + places[None, :], mask=live[:, None] & within[None, :], other=0.0
        )
        weights = tl.load(
            weight + column[:, None] * INPUTS + places[None, :], mask=inside[:, None] & within[None, :], other=0.0
        )
        total = tl.dot(values, weights.T, total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias + column, mask=inside, other=0.0)[None, :]
    results = y + row.to(tl.int64)[:, None] * OUTPUTS + column[None, :]
    tl.store(results, total, mask=live[:, None] & inside[None, :])
