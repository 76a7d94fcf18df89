"""float8[t] = x[t] * (1 / scales[t]) with scales[t] = max |x[t]| / 448, a token in one program (triton)."""

from typing import Final

import torch
import triton
import triton.language as tl

from .tiles import CAST_ELEMENTS

LARGEST: Final = tl.constexpr(448.0)
"""The largest number of float8_e4m3fn."""
LEAST: Final = tl.constexpr(1e-30)
"""Taken for the largest value of a row that has none as large, so that 1 / scale is a number."""


def cast_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, in], contiguous -> float8_e4m3fn [T, in] and scales [T, 1] float32. A row with an infinite or NaN value has
    an infinite scale and NaN in the place of that value."""
    assert x.is_contiguous()
    rows, inputs = x.shape
    result, scales = empty_cast(x.shape, x.device)
    width = triton.next_power_of_2(inputs)
    warps = min(16, max(4, width // (32 * CAST_ELEMENTS)))
    if rows:
        cast[(rows,)](result, scales, x, INPUTS=inputs, WIDTH=width, num_warps=warps, enable_fp_fusion=True)
    return result, scales


def empty_cast(shape: torch.Size, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for rows [T, in] in float8_e4m3fn and for their scales [T, 1] float32."""
    values = torch.empty(shape, dtype=torch.float8_e4m3fn, device=device)
    return values, torch.empty(shape[0], 1, dtype=torch.float32, device=device)


@triton.jit
def cast(result: tl.tensor, scales: tl.tensor, x: tl.tensor, INPUTS: tl.constexpr, WIDTH: tl.constexpr) -> None:
    """Grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, WIDTH)
    values = tl.load(x + row * INPUTS + lanes, mask=lanes < INPUTS, other=0.0).to(tl.float32)
    cast_row(result, scales, values, row, INPUTS, WIDTH)


@triton.jit
def cast_row(
    result: tl.tensor, scales: tl.tensor, values: tl.tensor, row: tl.tensor, INPUTS: tl.constexpr, WIDTH: tl.constexpr
) -> None:
    """Store a row of x, WIDTH values in fp32, zeros from INPUTS on, and its scale."""
    lanes = tl.arange(0, WIDTH)
    magnitudes = tl.where(values == values, tl.abs(values), float("inf"))
    scale = tl.div_rn(tl.maximum(tl.max(magnitudes, 0), LEAST), LARGEST)
    tl.store(scales + row, scale)
    rounded = (values * tl.div_rn(1.0, scale)).to(result.dtype.element_ty)
    tl.store(result + row * INPUTS + lanes, rounded, mask=lanes < INPUTS)
