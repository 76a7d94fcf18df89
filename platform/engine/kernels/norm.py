"""RMS norm: x / sqrt(mean(x^2) + eps) * weight, alone or after adding x to the residual stream. Sums in float32.

Shapes: T tokens, C hidden size. float32 or bfloat16, all tensors alike.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit, prange

from .arrays import as_array
from .vector import Array, add, load, multiply, multiply_add, splat, store, total

LANES = 16
SERIAL_ELEMENTS = 1 << 15
"""Below this, waking the other threads costs more than they save."""


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [T, C] contiguous, weight [C] -> [T, C]. Sizes that are no multiple of 16 go the reference's way."""
    if x.shape[1] % LANES:
        return rms_norm_reference(x, weight, eps)
    output = torch.empty_like(x)
    rows = _norm_rows if x.numel() < SERIAL_ELEMENTS else _norm_rows_parallel
    rows(as_array(x), as_array(weight), np.float32(eps), as_array(output))
    return output


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """residual += x, in place and rounded to its dtype, then the norm of the residual [T, C]."""
    if x.shape[1] % LANES:
        return rms_norm_reference(residual.add_(x), weight, eps)
    output = torch.empty_like(x)
    rows = add_rows if x.numel() < SERIAL_ELEMENTS else add_rows_parallel
    rows(as_array(x), as_array(residual), as_array(weight), np.float32(eps), as_array(output))
    return output


@njit(cache=True, nogil=True)
def _norm_rows(x: Array, weight: Array, eps: float, output: Array) -> None:
    for token in range(x.shape[0]):
        _norm(x, token, weight, eps, output)


@njit(cache=True, nogil=True, parallel=True)
def _norm_rows_parallel(x: Array, weight: Array, eps: float, output: Array) -> None:
    for token in prange(x.shape[0]):
        _norm(x, token, weight, eps, output)


@njit(cache=True, nogil=True)
def add_rows(x: Array, residual: Array, weight: Array, eps: float, output: Array) -> None:
    for token in range(x.shape[0]):
        _add(x, token, residual)
        _norm(residual, token, weight, eps, output)


@njit(cache=True, nogil=True, parallel=True)
def add_rows_parallel(x: Array, residual: Array, weight: Array, eps: float, output: Array) -> None:
    for token in prange(x.shape[0]):
        _add(x, token, residual)
        _norm(residual, token, weight, eps, output)


@njit(cache=True, nogil=True)
def _add(x: Array, token: int, residual: Array) -> None:
    for at in range(token * x.shape[1], (token + 1) * x.shape[1], LANES):
        store(residual, at, add(load(residual, at), load(x, at)))


# As numpy divides: an exception would end the whole step.
@njit(cache=True, nogil=True, error_model="numpy")
def _norm(x: Array, token: int, weight: Array, eps: float, output: Array) -> None:
    size = x.shape[1]
    first = token * size
    squares = splat(np.float32(0))
    for at in range(first, first + size, LANES):
        values = load(x, at)
        squares = multiply_add(values, values, squares)
    factor = splat(np.float32(1 / math.sqrt(total(squares) / np.float32(size) + eps)))
    for at in range(0, size, LANES):
        store(output, first + at, multiply(multiply(load(x, first + at), factor), load(weight, at)))
