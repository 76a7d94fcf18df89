# mypy: allow-untyped-decorators
"""y = x W^T + bias with W as panels: the one door to the kernels, which differ by the registers they work in.

Shapes: x [M, K] fp32, W [N, K] as panels (`panels.py`), bias [N up to whole panels] fp32, y [M, N] fp32.
x is multiplied by factors [K] fp32 first, unless their address is 0.
"""

from typing import Any, Final

import numpy as np
from numba import carray, njit, types
from numba.extending import overload

from .dot_linear import dot_linear
from .instructions.address import address_of, pointer
from .layouts.split import split_size
from .vector_linear import packed_size, vector_linear


def scratch_size(m: int, k: int) -> int:
    """Floats of scratch that panel_linear needs."""
    return max(packed_size(m, k), int(split_size(m, k)))


def _multiply(
    panels: Any, bias: int, x: int, factors: int, scratch: int, y: int, m: int, n: int, k: int, workers: int
) -> None:
    raise AssertionError("compiled code calls one of the kernels instead")


@overload(_multiply)
def _choose(
    panels: Any, bias: Any, x: Any, factors: Any, scratch: Any, y: Any, m: Any, n: Any, k: Any, workers: Any
) -> Any:
    """numba wants the same names and annotations of all three."""

    def on_dots(
        panels: Any, bias: Any, x: Any, factors: Any, scratch: Any, y: Any, m: Any, n: Any, k: Any, workers: Any
    ) -> None:
        dot_linear(panels.ctypes.data, bias, x, factors, scratch, y, m, n, k, workers)

    def on_vectors(
        panels: Any, bias: Any, x: Any, factors: Any, scratch: Any, y: Any, m: Any, n: Any, k: Any, workers: Any
    ) -> None:
        vector_linear(panels, bias, x, factors, scratch, y, m, n, k, workers)

    return on_dots if panels.dtype == types.uint32 else on_vectors


@njit(cache=True)
def panel_linear(
    panels: Any, bias: int, x: int, factors: int, scratch: int, y: int, m: int, n: int, k: int, workers: int
) -> None:
    """bias, x, factors, scratch and y are addresses of fp32 arrays; scratch has scratch_size(m, k) floats.

    `workers` threads take panels as they get on: a slow core delays nobody.
    """
    if m:
        _multiply(panels, bias, x, factors, scratch, y, m, n, k, workers)


def _at_an_address(like: np.ndarray) -> Any:
    @njit(cache=True)
    def multiply(
        kind: int, panels: int, scales: int, zeros: int, bias: int, x: int, factors: int, scratch: int, y: int, m: int,
        n: int, k: int, group: int, workers: int,
    ) -> None:  # fmt: skip
        panel_linear(carray(pointer(panels, like), (1,)), bias, x, factors, scratch, y, m, n, k, workers)

    return multiply


_BY_ADDRESS: Final = {
    np.dtype(kind): _at_an_address(np.zeros(1, kind)) for kind in (np.uint16, np.uint32, np.int16, np.float32)
}


def panels_address(dtype: np.dtype[Any]) -> int:
    """The address of panel_linear for panels of a dtype, as any_linear calls it: kind, scales, zeros and group are of
    no account."""
    return address_of(_BY_ADDRESS[dtype])
