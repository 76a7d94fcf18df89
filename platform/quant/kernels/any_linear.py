# mypy: allow-untyped-decorators
"""y = x W^T + bias by where W is in memory: the one door for compiled callers, however the weights are stored.

Where a linear is, int64: addresses of weights and bias, form, then for codes the addresses of scales and zero points,
the kind of code and the steps of a group; at last what inputs are multiplied by first, 0 for nothing.
"""

from typing import Any, Final, NamedTuple

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic, overload

from .code_linear import code_linear_in_dots, code_linear_in_vectors
from .dots import HAS_BFLOAT16, HAS_INTEGERS
from .integer_linear import integer_linear
from .panel_linear import panel_linear
from .vectors import get

WEIGHTS, BIAS, FORM, SCALES, ZEROS, KIND, GROUP, FACTORS = range(8)
WIDTH: Final = 8
PANELS, VECTORS, DOTS, SPLIT_DOTS, INTEGERS = range(5)
"""Forms: floats as panels, codes for one of the kernels in `quant/code_kernels.py`."""


class Coded(NamedTuple):
    """Instead of the panels' element type: some weights are codes, the others such panels."""

    panels: Any


@intrinsic
def pointer(typing: Any, address: Any, like: Any) -> Any:
    """What is at an address, as a pointer to elements of like's type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.int64, like), generate


@njit(inline="always")
def _panels(panels: Any, where: Any, x: int, scratch: int, y: int, m: int, n: int, k: int, workers: int) -> None:
    weights = carray(pointer(where[WEIGHTS], panels), (1,))
    panel_linear(weights, where[BIAS], x, scratch, y, m, n, k, workers)


def _multiply(stored: Any, where: Any, x: Any, scratch: Any, y: Any, m: Any, n: Any, k: Any, workers: Any) -> None:
    raise AssertionError("compiled code calls one of the kernels instead")


@overload(_multiply)
def _choose(stored: Any, where: Any, x: Any, scratch: Any, y: Any, m: Any, n: Any, k: Any, workers: Any) -> Any:
    """numba wants the same names and annotations of both."""

    def floats(stored: Any, where: Any, x: Any, scratch: Any, y: Any, m: Any, n: Any, k: Any, workers: Any) -> None:
        _panels(stored, where, x, scratch, y, m, n, k, workers)

    def codes(stored: Any, where: Any, x: Any, scratch: Any, y: Any, m: Any, n: Any, k: Any, workers: Any) -> None:
        weights, bias, scales, zeros = where[WEIGHTS], where[BIAS], where[SCALES], where[ZEROS]
        kind, group = where[KIND], where[GROUP]
        if where[FORM] == PANELS:
            _panels(stored.panels, where, x, scratch, y, m, n, k, workers)
        elif HAS_INTEGERS and where[FORM] == INTEGERS:
            integer_linear(kind, weights, scales, zeros, bias, x, scratch, y, m, n, k, group, workers)
        elif HAS_BFLOAT16:
            addends = 2 if where[FORM] == SPLIT_DOTS else 1
            code_linear_in_dots(kind, weights, scales, zeros, bias, x, scratch, y, m, n, k, group, workers, addends)
        else:
            code_linear_in_vectors(kind, weights, scales, zeros, bias, x, scratch, y, m, n, k, group, workers)

    return codes if isinstance(stored, types.BaseNamedTuple) else floats


@njit
def _multiply_inputs(x: int, factors: int, scaled: Any) -> None:
    m, k = scaled.shape
    for row in range(m):
        for at in range(k):
            scaled[row, at] = get(x + (row * k + at) * 4) * get(factors + at * 4)


@njit
def _multiply_scaled(stored: Any, where: Any, x: Any, scratch: int, y: int, n: int, workers: int) -> None:
    """x as an array, which lives as long as this call."""
    _multiply(stored, where, x.ctypes.data, scratch, y, len(x), n, x.shape[1], workers)


@njit
def any_linear(stored: Any, where: Any, x: int, scratch: int, y: int, m: int, n: int, k: int, workers: int) -> None:
    """`stored` is an array of the panels' element type, or Coded; where [WIDTH]; the others are addresses and sizes."""
    if m and where[FACTORS]:
        scaled = np.empty((m, k), np.float32)
        _multiply_inputs(x, where[FACTORS], scaled)
        _multiply_scaled(stored, where, scaled, scratch, y, n, workers)
    elif m:
        _multiply(stored, where, x, scratch, y, m, n, k, workers)
