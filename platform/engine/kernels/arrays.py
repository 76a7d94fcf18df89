"""Tensors as the arrays that numba kernels take."""

from typing import Any

import torch

STORAGE = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}
"""numba knows neither of the short floats: their bits travel as integers, told apart by sign (see vector.py)."""


def as_array(tensor: torch.Tensor) -> Any:
    """A view of a contiguous CPU tensor: float32 as it is, bfloat16 as uint16, float16 as int16."""
    if tensor.dtype is torch.float32:
        return tensor.numpy()
    return tensor.view(STORAGE[tensor.dtype]).numpy()
