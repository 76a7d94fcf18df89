"""activation(gate) * up of the fused product of both, in fp32; with a cast a token is one program (triton).

The activations are gate / (1 + e^-z): z = gate is SiLU, z = 2 sqrt(2 / pi) (gate + 0.044715 gate^3) is GELU by tanh.
gpt-oss's has z = 1.702 gate, of a gate that is at most 7, times up + 1, of an up that is -7 to 7.
The CPU's twin is engine/kernels/silu.py. Shapes: T tokens, I intermediate size.
"""

from typing import Literal

import torch
import triton
import triton.language as tl

from loraplex.quant.kernels.cuda.cast import cast_row, cast_rows, empty_cast
from loraplex.quant.kernels.cuda.chain import can_chain, let_next_begin, wait_for_previous
from loraplex.quant.kernels.cuda.guard import require

from .tiles import COLUMN_WARPS, COLUMNS, GATE_COLUMNS, row_warps

Activation = Literal["silu", "gelu_tanh", "clamped_swiglu"]


def multiply_gate(gate_up: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    """gate_up [T, 2 I] contiguous, gate first -> [T, I] in its dtype."""
    result = _empty_result(gate_up)
    tokens, size = result.shape
    if tokens:
        gate[tokens, triton.cdiv(size, COLUMNS)](
            result, None, None, None, gate_up, SIZE=size, WIDTH=COLUMNS, ACTIVATION=activation,
            CHAINED=can_chain(result.device), launch_pdl=can_chain(result.device),
            num_warps=COLUMN_WARPS, enable_fp_fusion=True,
        )  # fmt: skip
    return result


def multiply_gate_cast(
    gate_up: torch.Tensor, activation: Activation = "silu", scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same, and the result cast to float8_e4m3fn [T, I] with scales [T, 1], bit for bit as `cast_rows` casts it."""
    result = _empty_result(gate_up)
    tokens, size = result.shape
    width = triton.next_power_of_2(size)
    if width > GATE_COLUMNS:
        result = multiply_gate(gate_up, activation)
        return result, *cast_rows(result, scale)
    values, scales = empty_cast(result.shape, result.device)
    if tokens:
        gate[tokens, 1](
            result, values, scales, scale, gate_up, SIZE=size, WIDTH=width, ACTIVATION=activation,
            CHAINED=can_chain(result.device), launch_pdl=can_chain(result.device),
            num_warps=row_warps(width), enable_fp_fusion=True,
        )  # fmt: skip
    return result, values, scales


def _empty_result(gate_up: torch.Tensor) -> torch.Tensor:
    require(gate_up.is_contiguous() and gate_up.shape[1] % 2 == 0, "gate and up must be contiguous and as wide")
    return torch.empty(gate_up.shape[0], gate_up.shape[1] // 2, dtype=gate_up.dtype, device=gate_up.device)


@triton.jit
def gate(
    result: tl.tensor, float8: tl.tensor | None, scales: tl.tensor | None, fixed: tl.tensor | None, gate_up: tl.tensor,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, ACTIVATION: tl.constexpr,
    CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (tokens, blocks of WIDTH columns); with float8 there is one block. fixed: as of `cast_row`."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < SIZE
    let_next_begin(CHAINED)
    wait_for_previous(CHAINED)
    gates = tl.load(gate_up + row * (2 * SIZE) + columns, mask=inside, other=0.0).to(tl.float32)
    ups = tl.load(gate_up + row * (2 * SIZE) + SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    exponent = gates
    if ACTIVATION == "gelu_tanh":
        exponent = 1.5957691216057308 * (gates + 0.044715 * gates * gates * gates)
    elif ACTIVATION == "clamped_swiglu":
        gates = tl.minimum(gates, 7.0, propagate_nan=tl.PropagateNan.ALL)
        ups = tl.clamp(ups, -7.0, 7.0, propagate_nan=tl.PropagateNan.ALL) + 1.0
        exponent = 1.702 * gates
    product = (gates / (1.0 + tl.exp(-exponent)) * ups).to(result.dtype.element_ty)
    tl.store(result + row * SIZE + columns, product, mask=inside)
    if float8 is not None:
        cast_row(float8, scales, product.to(tl.float32), row, fixed, SIZE, WIDTH)
