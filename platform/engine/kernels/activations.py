"""relu(x), silu(x) and gelu(x) by its tanh form, x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), alone or times
what is beside it; and x * sigmoid(gates). In float32. silu.py has silu(gate) * up, for which this is not needed.

Shapes: T tokens, I intermediate size. float32 or bfloat16.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numba import carray, njit, prange

from loraplex.quant.kernels.instructions.address import address_of, pointer

from .arrays import as_array
from .silu import LANES, SERIAL_ELEMENTS, silu_value
from .vector import Array, add, divide, exp, load, maximum, multiply, multiply_add, splat, store

SILU, GELU_TANH, RELU = range(3)
CODES: Final[Mapping[str, int]] = {"silu": SILU, "gelu_tanh": GELU_TANH, "relu": RELU}
"""How the kernel tells activations apart. It has no others."""
ROOT: Final = np.float32(2 * math.sqrt(2 / math.pi))
CUBE: Final = np.float32(2 * math.sqrt(2 / math.pi) * 0.044715)
FLOATS: Final = np.zeros(1, np.float32)


def activate(x: torch.Tensor, code: int, is_gated: bool) -> torch.Tensor:
    """x [T, I] contiguous, gated [T, 2 I] with the gate first -> [T, I]; I is a multiple of 16."""
    tokens, width = x.shape
    output = x.new_empty(tokens, width // 2 if is_gated else width)
    activate_rows(as_array(x), code, is_gated, as_array(output))
    return output


def gate_by_sigmoid(x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(gates), in place; both [T, I] contiguous, I a multiple of 16."""
    gate(as_array(x), as_array(gates))
    return x


@functools.cache
def activation_address() -> int:
    """For compiled callers, `activate_rows` for float32, of addresses of x and output, T, I, code, is_gated."""
    return address_of(_by_address)


@njit(cache=True, nogil=True, parallel=True)
def activate_rows(x: Array, code: int, is_gated: bool, output: Array) -> None:
    if output.size < SERIAL_ELEMENTS:
        for token in range(output.shape[0]):
            _row(x, token, code, is_gated, output)
    else:
        for token in prange(output.shape[0]):
            _row(x, token, code, is_gated, output)


@njit(cache=True, nogil=True, parallel=True)
def gate(x: Array, gates: Array) -> None:
    """As gate_by_sigmoid."""
    if x.size < SERIAL_ELEMENTS:
        for token in range(x.shape[0]):
            _gate_row(x, gates, token)
    else:
        for token in prange(x.shape[0]):
            _gate_row(x, gates, token)


@njit(cache=True, nogil=True)
def _gate_row(x: Array, gates: Array, token: int) -> None:
    for at in range(token * x.shape[1], (token + 1) * x.shape[1], LANES):
        store(x, at, multiply(load(x, at), _sigmoid(load(gates, at))))


@njit(cache=True, nogil=True)
def _by_address(x: int, output: int, tokens: int, size: int, code: int, is_gated: int) -> None:
    width = 2 * size if is_gated else size
    activate_rows(
        carray(pointer(x, FLOATS), (tokens, width)),
        code,
        is_gated != 0,
        carray(pointer(output, FLOATS), (tokens, size)),
    )


@njit(cache=True, nogil=True)
def _row(x: Array, token: int, code: int, is_gated: bool, output: Array) -> None:
    size, first, target = output.shape[1], token * x.shape[1], token * output.shape[1]
    if code == GELU_TANH:
        for at in range(0, size, LANES):
            store(output, target + at, _gelu(load(x, first + at)))
    elif code == RELU:
        for at in range(0, size, LANES):
            store(output, target + at, maximum(splat(np.float32(0)), load(x, first + at)))
    else:
        for at in range(0, size, LANES):
            store(output, target + at, silu_value(load(x, first + at)))
    if is_gated:
        for at in range(0, size, LANES):
            store(output, target + at, multiply(load(output, target + at), load(x, first + size + at)))


@njit(inline="always")
def _gelu(values: Any) -> Any:
    """Of a vector: x / (1 + e^-2u) is x / 2 * (1 + tanh u), and loses no digits where tanh is near -1."""
    twice = multiply(values, multiply_add(multiply(values, values), splat(CUBE), splat(ROOT)))
    # e^88 is the largest that exp knows; there the quotient is 0 already.
    inverse = exp(multiply(maximum(splat(np.float32(-88)), twice), splat(np.float32(-1))))
    return divide(values, add(splat(np.float32(1)), inverse))


@njit(inline="always")
def _sigmoid(values: Any) -> Any:
    """Of a vector."""
    inverse = exp(multiply(maximum(splat(np.float32(-88)), values), splat(np.float32(-1))))
    return divide(splat(np.float32(1)), add(splat(np.float32(1)), inverse))
