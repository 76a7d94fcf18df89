"""float8[t] = x[t] * (1 / scales[t]), a token in one program (triton); scales[t] = max |x[t]| / 448, or a fixed one."""

from typing import Final

import torch
import triton
import triton.language as tl

from .guard import require
from .tiles import CAST_ELEMENTS

LARGEST: Final = tl.constexpr(448.0)
"""The largest number of float8_e4m3fn."""
LEAST: Final = tl.constexpr(1e-30)
"""Taken for the largest value of a row that has none as large, so that 1 / scale is a number."""


def cast_rows(x: torch.Tensor, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, in], contiguous -> float8_e4m3fn [T, in] and scales [T, 1] float32. A row with an infinite or NaN value has
    NaN in the place of that value, and an infinite scale.

    With `scale` all rows have that one: what is beyond 448 times it becomes 448 times it.
    """
    require(x.is_contiguous(), "rows must be contiguous")
    rows, inputs = x.shape
    result, scales = empty_cast(x.shape, x.device)
    width = triton.next_power_of_2(inputs)
    warps = min(16, max(4, width // (32 * CAST_ELEMENTS)))
    if rows:
        cast[(rows,)](result, scales, x, scale, INPUTS=inputs, WIDTH=width, num_warps=warps, enable_fp_fusion=True)
    return result, scales


def empty_cast(shape: torch.Size, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for rows [T, in] in float8_e4m3fn and for their scales [T, 1] float32."""
    values = torch.empty(shape, dtype=torch.float8_e4m3fn, device=device)
    return values, torch.empty(shape[0], 1, dtype=torch.float32, device=device)


@triton.jit
def cast(
    result: tl.tensor, scales: tl.tensor, x: tl.tensor, fixed: tl.tensor | None,
    INPUTS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, WIDTH)
    values = tl.load(x + row * INPUTS + lanes, mask=lanes < INPUTS, other=0.0).to(tl.float32)
    cast_row(result, scales, values, row, fixed, INPUTS, WIDTH)


@triton.jit
def cast_row(
    result: tl.tensor, scales: tl.tensor, values: tl.tensor, row: tl.tensor, fixed: tl.tensor | None,
    INPUTS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Store a row of x, WIDTH values in fp32, zeros from INPUTS on, and its scale: `fixed`, or its own."""
    lanes = tl.arange(0, WIDTH)
    magnitudes = tl.where(values == values, tl.abs(values), float("inf"))
    if fixed is None:
        scale = tl.div_rn(tl.maximum(tl.max(magnitudes, 0), LEAST), LARGEST)
        scaled = values * tl.div_rn(1.0, scale)
    else:
        scale = fixed
        scaled = tl.clamp(values * tl.div_rn(1.0, scale), -LARGEST, LARGEST)
        scaled = tl.where(magnitudes < float("inf"), scaled, float("nan"))
    tl.store(scales + row, scale)
    rounded = scaled.to(result.dtype.element_ty)
    tl.store(result + row * INPUTS + lanes, rounded, mask=lanes < INPUTS)
