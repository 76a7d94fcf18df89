"""float8[t] = x[t] / scales[t] with scales[t] = max |x[t]| / 448, a token in one program (triton)."""

import torch
import triton
import triton.language as tl

from .tiles import CAST_ELEMENTS

LARGEST = 448.0
"""The largest number of float8_e4m3fn."""


def cast_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, in], contiguous -> float8_e4m3fn [T, in] and scales [T, 1] float32; rows of zeros have scale 1. A row with
    an infinite or NaN value has an infinite or NaN scale."""
    assert x.is_contiguous()
    rows, inputs = x.shape
    result = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    width = triton.next_power_of_2(inputs)
    warps = min(16, max(4, width // (32 * CAST_ELEMENTS)))
    if rows:
        cast[(rows,)](result, scales, x, INPUTS=inputs, WIDTH=width, LARGEST=LARGEST, num_warps=warps)
    return result, scales


@triton.jit
def cast(
    result: tl.tensor, scales: tl.tensor, x: tl.tensor, INPUTS: tl.constexpr, WIDTH: tl.constexpr, LARGEST: tl.constexpr
) -> None:
    """Grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, WIDTH)
    inside = lanes < INPUTS
    values = tl.load(x + row * INPUTS + lanes, mask=inside, other=0.0).to(tl.float32)
    magnitudes = tl.abs(values)
    largest = tl.max(tl.where(values == values, magnitudes, float("inf")), 0)
    scale = tl.where(largest > 0, largest / LARGEST, 1.0)
    tl.store(scales + row, scale)
    tl.store(result + row * INPUTS + lanes, (values / scale).to(result.dtype.element_ty), mask=inside)
