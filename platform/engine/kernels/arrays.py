"""Tensors as the arrays that numba kernels take."""

from typing import Any

import torch

STORAGE = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}
"""numba knows neither of the short floats: their bits travel as integers, told apart by sign (see vector.py)."""


def as_array(tensor: torch.Tensor) -> Any:
    """A view of a contiguous CPU tensor: float32 as it is, bfloat16 as uint16, float16 as int16."""
    bits = STORAGE.get(tensor.dtype)
    return tensor.numpy() if bits is None else tensor.view(bits).numpy()
