"""The arithmetic after the last hidden state: from a sum to a vector, and its way over a border."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from .wanted import Pooling, PoolingKind

Vector = npt.NDArray[np.float32]
WIRE: Final = np.dtype("<f4")
"""How a vector crosses a border: float32, little-endian."""
LEAST_LENGTH: Final = 1e-12
"""What is shorter is divided by this when it is scaled."""


def finish_vector(pooling: Pooling, hidden: npt.NDArray[np.float64], prompt_length: int) -> Vector | None:
    """`hidden` [C]: the sum over all positions that count. None where a number of it is not finite."""
    vector = hidden / prompt_length if pooling.kind is PoolingKind.MEAN else hidden
    vector = vector[: pooling.dimensions]
    if pooling.normalize:
        vector = vector / max(math.sqrt(float(vector @ vector)), LEAST_LENGTH)
    return vector.astype(np.float32) if np.isfinite(vector).all() else None


def to_wire(vector: Vector) -> bytes:
    return vector.astype(WIRE).tobytes()


def from_wire(data: bytes) -> Vector:
    return np.frombuffer(data, WIRE).astype(np.float32)
