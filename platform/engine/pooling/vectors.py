"""The arithmetic after the last hidden state: from a sum to a vector, and its way over a border."""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from .wanted import Pooling, PoolingKind

Vector = npt.NDArray[np.float32]
WIRE: Final = np.dtype("<f4")
"""How a vector crosses a border: float32, little-endian."""
LEAST_LENGTH: Final = 1e-12
"""What is shorter is divided by this when it is scaled."""


Scores = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
"""A prompt's vector [C] -> [classes]."""


def finish_vector(
    pooling: Pooling, hidden: npt.NDArray[np.float64], prompt_length: int, scores: Scores | None = None
) -> Vector | None:
    """`hidden` [C]: the sum over all positions that count, or the largest of each number; `scores`: of a head that
    classifies. None where a number of the result is not finite."""
    vector = hidden / prompt_length if pooling.kind is PoolingKind.MEAN else hidden
    if pooling.classify:
        assert scores is not None, "admitted without a head"
        if not np.isfinite(vector).all():
            return None  # an activation may make it finite
        with np.errstate(all="ignore"):  # what overflows is told as None
            return _finite(_activated(scores(vector), pooling))
    vector = vector[: pooling.dimensions]
    if pooling.normalize:
        vector = vector / max(math.sqrt(float(vector @ vector)), LEAST_LENGTH)
    return _finite(vector)


def _activated(scores: npt.NDArray[np.float64], pooling: Pooling) -> npt.NDArray[np.float64]:
    if pooling.activation == "":
        return scores
    if pooling.activation == "sigmoid" or len(scores) == 1:
        # Of a large negative score the exponential would overflow.
        return np.asarray(0.5 * (1.0 + np.tanh(0.5 * scores)))
    exponentials: npt.NDArray[np.float64] = np.exp(scores - scores.max())
    return np.asarray(exponentials / exponentials.sum())


def _finite(vector: npt.NDArray[np.float64]) -> Vector | None:
    return vector.astype(np.float32) if np.isfinite(vector).all() else None


def to_wire(vector: Vector) -> bytes:
    return vector.astype(WIRE).tobytes()


def from_wire(data: bytes) -> Vector:
    return np.frombuffer(data, WIRE).astype(np.float32)


def cosine(first: Vector, second: Vector) -> float:
    """From -1 to 1; 0 where one of them is zero."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    lengths = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    # Rounding takes the quotient of equal vectors beyond 1.
    return max(-1.0, min(1.0, float(a @ b) / max(lengths, LEAST_LENGTH)))
