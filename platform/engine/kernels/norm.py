"""RMS norm, x / sqrt(mean(x^2) + eps) * weight, and LayerNorm, (x - mean) / sqrt(variance + eps) * weight + bias; alone
or after adding x to the residual stream. Sums in float32.

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
    return rms_norm_reference(x, weight, eps) if x.shape[1] % LANES else _normed(x, x, weight, weight[:0], eps, False)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """x [T, C] contiguous, weight and bias [C] -> [T, C]; C is a multiple of 16."""
    return _normed(x, x, weight, bias, eps, False)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """residual += x, in place and rounded to its dtype, then the norm of the residual [T, C]."""
    if x.shape[1] % LANES:
        return rms_norm_reference(residual.add_(x), weight, eps)
    return _normed(x, residual, weight, weight[:0], eps, True)


def _normed(
    x: torch.Tensor, stream: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, is_added: bool
) -> torch.Tensor:
    output = torch.empty_like(stream)
    arrays = (as_array(tensor) for tensor in (x, stream, weight, bias))
    norm_rows(*arrays, np.float32(eps), is_added, as_array(output))
    return output


@njit(cache=True, nogil=True, parallel=True)
def norm_rows(x: Array, stream: Array, weight: Array, bias: Array, eps: float, is_added: bool, output: Array) -> None:
    """The norm of stream [T, C], after x is added to it in place if `is_added`. A bias of no elements: the RMS norm."""
    if stream.size < SERIAL_ELEMENTS:
        for token in range(stream.shape[0]):
            _row(x, stream, token, weight, bias, eps, is_added, output)
    else:
        for token in prange(stream.shape[0]):
            _row(x, stream, token, weight, bias, eps, is_added, output)


@njit(cache=True, nogil=True)
def _row(
    x: Array, stream: Array, token: int, weight: Array, bias: Array, eps: float, is_added: bool, output: Array
) -> None:
    if is_added:
        for at in range(token * x.shape[1], (token + 1) * x.shape[1], LANES):
            store(stream, at, add(load(stream, at), load(x, at)))
    if bias.size:
        _layer_norm(stream, token, weight, bias, eps, output)
    else:
        _rms_norm(stream, token, weight, eps, output)


# As numpy divides: an exception would end the whole step.
@njit(cache=True, nogil=True, error_model="numpy")
def _rms_norm(x: Array, token: int, weight: Array, eps: float, output: Array) -> None:
    size = x.shape[1]
    first = token * size
    squares = splat(np.float32(0))
    for at in range(first, first + size, LANES):
        values = load(x, at)
        squares = multiply_add(values, values, squares)
    factor = splat(np.float32(1 / math.sqrt(total(squares) / np.float32(size) + eps)))
    for at in range(0, size, LANES):
        store(output, first + at, multiply(multiply(load(x, first + at), factor), load(weight, at)))


@njit(cache=True, nogil=True, error_model="numpy")
def _layer_norm(x: Array, token: int, weight: Array, bias: Array, eps: float, output: Array) -> None:
    size = x.shape[1]
    first = token * size
    sums = squares = splat(np.float32(0))
    for at in range(first, first + size, LANES):
        sums = add(sums, load(x, at))
    shift = splat(-total(sums) / np.float32(size))
    for at in range(first, first + size, LANES):
        centred = add(load(x, at), shift)
        squares = multiply_add(centred, centred, squares)
    factor = splat(np.float32(1 / math.sqrt(total(squares) / np.float32(size) + eps)))
    for at in range(0, size, LANES):
        scaled = multiply(add(load(x, first + at), shift), factor)
        store(output, first + at, multiply_add(scaled, load(weight, at), load(bias, at)))
