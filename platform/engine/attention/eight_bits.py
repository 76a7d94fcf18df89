"""Keys and values in 8 bits, in plain torch: what the kernels compute, and what they are tested against."""

from typing import Final

import torch

from .kernels.write import NOT_FINITE

LARGEST: Final = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def quantize(heads: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """heads [..., D] -> the same in `dtype`, rounded to nearest even, and float32 scales [..., 1] as bfloat16 has them.

    A scale is the least bfloat16 with which the head's largest number fits. NaN and infinity make the scale so.
    """
    heads = heads.float()
    scales = _bfloat16_above(heads.abs().amax(dim=-1, keepdim=True) / LARGEST[dtype])
    scaled = (heads / torch.where(scales == 0, 1, scales)).clamp(-LARGEST[dtype], LARGEST[dtype])
    return (scaled.round() if dtype is torch.int8 else scaled).to(dtype), scales


def quantize_by(heads: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """heads [T, G, D] by static scales [G] -> the same in `dtype`, saturated, and how many numbers of each token that
    clipped [T], NOT_FINITE where one is not finite."""
    scaled = heads.float() / scales[:, None]
    bounded = scaled.nan_to_num().clamp(-LARGEST[dtype], LARGEST[dtype])
    clipped = (scaled.abs() > LARGEST[dtype]).sum(dim=(1, 2))
    clipped[~heads.isfinite().all(dim=-1).all(dim=-1)] = NOT_FINITE
    return (bounded.round() if dtype is torch.int8 else bounded).to(dtype), clipped


def dequantize(stored: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return stored.to(dtype) * scales.to(dtype)


def _bfloat16_above(values: torch.Tensor) -> torch.Tensor:
    bits = (values.view(torch.int32) + 0xFFFF) & -0x10000
    return torch.where(values.isnan(), values, bits.view(torch.float32))
