"""Compile (or fetch from numba's cache) the fused loops, so that nothing is compiled inside a request."""

import torch

from .norm import SERIAL_ELEMENTS, add_rms_norm, rms_norm
from .silu import silu_multiply

SIZE = 64


def warm_up(compute_dtype: torch.dtype) -> None:
    """Each loop once on one token and once on as many as make it parallel, with activations of this dtype."""
    weight = torch.ones(SIZE, dtype=compute_dtype)
    for tokens in (1, SERIAL_ELEMENTS // SIZE):
        x = torch.zeros(tokens, SIZE, dtype=compute_dtype)
        rms_norm(x, weight, 1.0)
        add_rms_norm(x, x.clone(), weight, 1.0)
        silu_multiply(torch.zeros(tokens, 2 * SIZE, dtype=compute_dtype))
