# mypy: allow-untyped-decorators
"""y = x W^T + bias by where W is in memory: the one door for compiled callers, however the weights are stored.

Where a linear is, int64: addresses of weights and bias, then of the kernel that multiplies by them (`address.py`), for
codes the addresses of scales and zero points, the kind of code and the steps of a group; at last what inputs are
multiplied by first, 0 for nothing.
"""

from typing import Any, Final

import numpy as np
from numba import njit

from .address import call
from .vectors import get

WEIGHTS, BIAS, KERNEL, SCALES, ZEROS, KIND, GROUP, FACTORS = range(8)
WIDTH: Final = 8


@njit
def _multiply_inputs(x: int, factors: int, scaled: Any) -> None:
    m, k = scaled.shape
    for row in range(m):
        for at in range(k):
            scaled[row, at] = get(x + (row * k + at) * 4) * get(factors + at * 4)


@njit
def _multiply(where: Any, x: int, scratch: int, y: int, m: int, n: int, k: int, workers: int) -> None:
    call(
        where[KERNEL],
        (
            where[KIND], where[WEIGHTS], where[SCALES], where[ZEROS], where[BIAS], x, scratch, y, m, n, k,
            where[GROUP], workers,
        ),
    )  # fmt: skip


@njit
def _multiply_scaled(where: Any, x: Any, scratch: int, y: int, n: int, workers: int) -> None:
    """x as an array, which lives as long as this call."""
    _multiply(where, x.ctypes.data, scratch, y, len(x), n, x.shape[1], workers)


@njit
def any_linear(where: Any, x: int, scratch: int, y: int, m: int, n: int, k: int, workers: int) -> None:
    """where [WIDTH]; the others are addresses and sizes."""
    if m and where[FACTORS]:
        scaled = np.empty((m, k), np.float32)
        _multiply_inputs(x, where[FACTORS], scaled)
        _multiply_scaled(where, scaled, scratch, y, n, workers)
    elif m:
        _multiply(where, x, scratch, y, m, n, k, workers)
