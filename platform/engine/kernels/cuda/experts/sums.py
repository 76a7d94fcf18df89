"""What a token's experts give, summed in the order in which it has them (triton).

Shapes: T tokens, C hidden size, K experts of a token, P = T K rows.
"""

import torch
import triton
import triton.language as tl

from loraplex.quant.kernels.cuda.chain import can_chain, let_next_begin, wait_for_previous

from ..tiles import COLUMN_WARPS, COLUMNS


def sum_experts(rows: torch.Tensor, places: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """rows [P, C], places [P] the row of each pair, weights [T, K] float32 -> [T, C] in the rows' dtype; sums are
    float32."""
    (tokens, chosen), size = weights.shape, rows.shape[1]
    output = torch.empty(tokens, size, dtype=rows.dtype, device=rows.device)
    if tokens:
        chained = can_chain(rows.device)
        add_up[tokens, triton.cdiv(size, COLUMNS)](
            output, rows, places, weights, SIZE=size, CHOSEN=chosen, WIDTH=COLUMNS, CHAINED=chained,
            launch_pdl=chained, num_warps=COLUMN_WARPS, enable_fp_fusion=True,
        )  # fmt: skip
    return output


def add_shared(output: torch.Tensor, shared: torch.Tensor, gate: torch.Tensor | None) -> None:
    """output [T, C] += sigmoid(gate [T, 1]) * shared [T, C], in place; without a gate += shared."""
    tokens, size = output.shape
    if tokens:
        chained = can_chain(output.device)
        add_gated[tokens, triton.cdiv(size, COLUMNS)](
            output, shared, gate, SIZE=size, WIDTH=COLUMNS, CHAINED=chained, launch_pdl=chained,
            num_warps=COLUMN_WARPS, enable_fp_fusion=True,
        )  # fmt: skip


@triton.jit
def add_up(
    output: tl.tensor, rows: tl.tensor, places: tl.tensor, weights: tl.tensor,
    SIZE: tl.constexpr, CHOSEN: tl.constexpr, WIDTH: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (tokens, blocks of WIDTH columns)."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < SIZE
    let_next_begin(CHAINED)
    wait_for_previous(CHAINED)
    total = tl.zeros((WIDTH,), tl.float32)
    for chosen in tl.static_range(CHOSEN):
        row = tl.load(places + token * CHOSEN + chosen).to(tl.int64)
        weight = tl.load(weights + token * CHOSEN + chosen)
        total += weight * tl.load(rows + row * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + token * SIZE + columns, total.to(output.dtype.element_ty), mask=inside)


@triton.jit
def add_gated(
    output: tl.tensor, shared: tl.tensor, gate: tl.tensor | None,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (tokens, blocks of WIDTH columns)."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < SIZE
    let_next_begin(CHAINED)
    wait_for_previous(CHAINED)
    added = tl.load(shared + token * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    if gate is not None:
        added *= 1.0 / (1.0 + tl.exp(-tl.load(gate + token)))
    places = output + token * SIZE + columns
    total = tl.load(places, mask=inside, other=0.0).to(tl.float32) + added
    tl.store(places, total.to(output.dtype.element_ty), mask=inside)
