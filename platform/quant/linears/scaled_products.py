"""Whether torch's scaled product multiplies float8 with a scale for each row and column on a device."""

from functools import cache
from typing import Final

import torch

from ..kernels.cuda.card import find_card

MULTIPLE: Final = 16
"""Inputs and outputs of a scaled product come in multiples of this."""
TRIED_ROWS: Final = (1, 3, 17)


@cache
def multiplies_rows(device: torch.device) -> bool:
    """Tried, not looked up: builds of torch differ in the devices, and in the numbers of rows, that they do it for."""
    if device.type == "cuda" and not find_card(device).has_float8:
        return False
    try:
        return all(_is_right(rows, device) for rows in TRIED_ROWS)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError):
        return False


def _is_right(rows: int, device: torch.device) -> bool:
    """Of numbers so small that every product and sum is exact."""
    x, weight = (_numbers(count, device) for count in (rows, MULTIPLE))
    # Powers of 2 by shifts: a device's power of floats may be off by a last place, and products then are not exact.
    scales, weight_scales = ((1 << torch.arange(count, device=device)).float() for count in (rows, MULTIPLE))
    bias = torch.ones(MULTIPLE, dtype=torch.bfloat16, device=device)
    product = multiply_rows(x, scales[:, None], weight, weight_scales[None], bias)
    wanted = (x.float() * scales[:, None]) @ (weight.float() * weight_scales[:, None]).T + 1
    return torch.equal(product, wanted.bfloat16())


def _numbers(rows: int, device: torch.device) -> torch.Tensor:
    places = torch.arange(rows * 2 * MULTIPLE, device=device).view(rows, -1)
    return (places % 5 - 2).float().to(torch.float8_e4m3fn)


def multiply_rows(
    values: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """values [T, in] and weight [out, in] float8_e4m3fn, scales [T, 1] and weight_scales [1, out] float32, bias [out]
    bfloat16 -> [T, out] bfloat16. Sums are taken out of the matrix units' narrow accumulators as they grow."""
    product: torch.Tensor = torch._scaled_mm(
        values, weight.T, scales, weight_scales, bias, out_dtype=torch.bfloat16, use_fast_accum=False
    )
    return product
