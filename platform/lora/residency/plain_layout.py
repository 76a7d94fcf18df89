"""kernels/layout.py by numpy alone: the same bits on machines without numba, in several passes."""

import numpy as np

from ..files.values import Bits


def transpose(source: Bits, target: Bits) -> None:
    """target [ranks, width] = source [width, ranks] transposed."""
    target[:] = source.T


def transpose_to_bfloat16(source: Bits, target: Bits) -> None:
    """transpose, of float32."""
    target[:] = _to_bfloat16(source.T)


def to_bfloat16(source: Bits, target: Bits) -> None:
    """target [n] = source [n], of float32."""
    target[:] = _to_bfloat16(source)


def _to_bfloat16(bits: Bits) -> Bits:
    """Rounded to nearest even."""
    rounded = bits + ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    return (rounded >> np.uint32(16)).astype(np.uint16)
