"""silu(gate) * up = gate / (1 + e^-gate) * up, from the fused product of both. In float32.

Shapes: T tokens, I intermediate size. float32 or bfloat16.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit, prange

from .arrays import as_array
from .vector import Array, add, divide, exp, load, maximum, multiply, splat, store

LANES = 16
SERIAL_ELEMENTS = 1 << 14
"""Below this, waking the other threads costs more than they save."""


def silu_multiply_reference(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def silu_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [T, 2 I] contiguous, gate first -> [T, I]. An I that is no multiple of 16 goes the reference's way."""
    tokens, width = gate_up.shape
    if width // 2 % LANES:
        return silu_multiply_reference(gate_up)
    output = gate_up.new_empty(tokens, width // 2)
    rows = silu_rows if output.numel() < SERIAL_ELEMENTS else silu_rows_parallel
    rows(as_array(gate_up), as_array(output))
    return output


@njit(cache=True, nogil=True)
def silu_rows(gate_up: Array, output: Array) -> None:
    silu_block(gate_up, 0, output.shape[0], 0, output.shape[1], output)


@njit(cache=True, nogil=True, parallel=True)
def silu_rows_parallel(gate_up: Array, output: Array) -> None:
    for token in prange(output.shape[0]):
        silu_block(gate_up, token, token + 1, 0, output.shape[1], output)


@njit(cache=True, nogil=True)
def silu_block(gate_up: Array, first: int, last: int, begin: int, end: int, output: Array) -> None:
    """output[first:last, begin:end]; begin and end are multiples of LANES."""
    size = output.shape[1]
    for token in range(first, last):
        row = 2 * token * size + begin
        silu_run(gate_up, row, row + size, output, token * size + begin, end - begin)


@njit(cache=True, nogil=True)
def silu_run(source: Array, gate: int, up: int, output: Array, target: int, count: int) -> None:
    """output[target : target + count] of those from source[gate] and source[up] on; count is a multiple of LANES."""
    for at in range(0, count, LANES):
        store(output, target + at, multiply(silu_value(load(source, gate + at)), load(source, up + at)))


@njit(inline="always")
def silu_value(gates: Any) -> Any:
    """Of a vector."""
    # e^88 is the largest that exp knows; there the quotient is 0 already.
    inverse = exp(multiply(maximum(splat(np.float32(-88)), gates), splat(np.float32(-1))))
    return divide(gates, add(splat(np.float32(1)), inverse))
