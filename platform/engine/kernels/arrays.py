"""Tensors as the arrays that numba kernels take."""

from typing import Any

import numpy as np
import torch

from .storage import E5M2

STORAGE = {
    torch.bfloat16: (torch.uint16, np.dtype(np.uint16)),
    torch.float16: (torch.int16, np.dtype(np.int16)),
    torch.float8_e4m3fn: (torch.uint8, np.dtype(np.uint8)),
    torch.float8_e5m2: (torch.uint8, E5M2),
}
"""numba knows none of the short floats: their bits travel as what storage.py takes for them."""
WORTH = {torch.float8_e4m3fn: 256.0}
"""What stored numbers are worth more than the kernels take them for; the others are taken as they are."""


def as_array(tensor: torch.Tensor) -> Any:
    """A view of a contiguous CPU tensor: float32 and int8 as they are, shorter floats as their bits."""
    if tensor.dtype not in STORAGE:
        return tensor.numpy()
    bits, element = STORAGE[tensor.dtype]
    return tensor.view(bits).numpy().view(element)
