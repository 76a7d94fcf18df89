# mypy: allow-untyped-decorators
"""From tensors as files have them to ranks as pages have them, on a loader thread: one pass, no Python, no GIL.

Values are bit patterns, uint32 for float32 and uint16 for the 16-bit types.
"""

from typing import Any

import numpy as np
from numba import njit


@njit(inline="always")
def _to_bfloat16(value: Any) -> Any:
    """Rounded to nearest even."""
    rounded = value + ((value >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    return np.uint16(np.uint32(rounded) >> np.uint32(16))


@njit(["void(uint16[:,:], uint16[:,::1])", "void(uint32[:,:], uint32[:,::1])"], cache=True, nogil=True)
def transpose(source: Any, target: Any) -> None:
    """target [ranks, width] = source [width, ranks] transposed."""
    ranks, width = target.shape
    for column in range(width):
        for rank in range(ranks):
            target[rank, column] = source[column, rank]


@njit(["void(uint32[:,:], uint16[:,::1])"], cache=True, nogil=True)
def transpose_to_bfloat16(source: Any, target: Any) -> None:
    """transpose, of float32."""
    ranks, width = target.shape
    for column in range(width):
        for rank in range(ranks):
            target[rank, column] = _to_bfloat16(source[column, rank])


@njit(["void(uint32[::1], uint16[::1])"], cache=True, nogil=True)
def to_bfloat16(source: Any, target: Any) -> None:
    """target [n] = source [n], of float32."""
    for index in range(len(source)):
        target[index] = _to_bfloat16(source[index])
