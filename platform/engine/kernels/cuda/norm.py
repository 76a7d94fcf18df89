"""residual += x, then residual / sqrt(mean(residual^2) + eps) * weight, a token in one program, sums in fp32 (triton).

The CPU's twin is engine/kernels/norm.py. Shapes: T tokens, C hidden size.
"""

import torch
import triton
import triton.language as tl

from loraplex.quant.kernels.cuda.cast import cast_row, empty_cast
from loraplex.quant.kernels.cuda.chain import can_chain, let_next_begin, wait_for_previous
from loraplex.quant.kernels.cuda.guard import require

from .tiles import REGISTERS, row_warps


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x and residual [T, C], weight [C], all contiguous -> [T, C] in x's dtype.

    The residual is updated in place and rounded to its dtype, and it is the rounded one whose norm is taken.
    """
    normed = torch.empty_like(x)
    _launch(normed, None, None, None, x, residual, weight, eps)
    return normed


def add_rms_norm_cast(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same, and the result cast to float8_e4m3fn [T, C] with scales [T, 1], bit for bit as `cast_rows` casts it."""
    normed, (values, scales) = torch.empty_like(x), empty_cast(x.shape, x.device)
    _launch(normed, values, scales, scale, x, residual, weight, eps)
    return normed, values, scales


def _launch(
    normed: torch.Tensor, values: torch.Tensor | None, scales: torch.Tensor | None, scale: float | None,
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float,
) -> None:  # fmt: skip
    is_packed = x.is_contiguous() and residual.is_contiguous() and weight.is_contiguous()
    require(is_packed and x.shape == residual.shape, "rows and residual must be contiguous and of one shape")
    tokens, size = x.shape
    if tokens:
        width = triton.next_power_of_2(size)
        norm[(tokens,)](
            normed, values, scales, scale, x, residual, weight, eps,
            SIZE=size, WIDTH=width, CHAINED=can_chain(x.device), launch_pdl=can_chain(x.device),
            num_warps=row_warps(width), maxnreg=REGISTERS, enable_fp_fusion=True,
        )  # fmt: skip


@triton.jit
def norm(
    normed: tl.tensor, float8: tl.tensor | None, scales: tl.tensor | None, fixed: tl.tensor | None,
    x: tl.tensor, residual: tl.tensor, weight: tl.tensor, eps: tl.tensor,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (tokens,). float8 None: nothing is cast; fixed: as of `cast_row`."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, WIDTH)
    inside = lanes < SIZE
    places = row * SIZE + lanes
    let_next_begin(CHAINED)
    gain = tl.load(weight + lanes, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(CHAINED)
    total = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(residual + places, mask=inside, other=0.0).to(tl.float32)
    rounded = total.to(residual.dtype.element_ty)
    tl.store(residual + places, rounded, mask=inside)
    values = rounded.to(tl.float32)
    factor = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(values * values, 0) / SIZE + eps))
    scaled = values * factor * gain
    result = scaled.to(normed.dtype.element_ty)
    tl.store(normed + places, result, mask=inside)
    if float8 is not None:
        cast_row(float8, scales, result.to(tl.float32), row, fixed, SIZE, WIDTH)
