"""The arithmetic after the last hidden state: from a sum to a vector, or from each token's to one of its own, and their
way over a border."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from .wanted import Pooling, PoolingKind

Vector = npt.NDArray[np.float32]
"""[numbers], or [tokens, numbers] where each token has one."""
WIRE: Final = np.dtype("<f4")
"""How its numbers cross a border: float32, little-endian."""
ROWS_BYTES: Final = 4
"""Before them: how many rows there are, 0 for a single vector."""
LEAST_LENGTH: Final = 1e-12
"""What is shorter is divided by this when it is scaled."""
MOST_NUMBERS: Final = 1 << 23
"""In all vectors of tokens that one request asks for."""

Hidden = npt.NDArray[np.floating[Any]]
Scores = Callable[[Hidden], npt.NDArray[np.float64]]
"""Vectors [..., C] -> [..., classes]."""


class Layer(Protocol):
    def apply(self, vectors: Hidden) -> Hidden:
        """[..., in] -> [..., out]"""


def finish_vector(
    pooling: Pooling, hidden: Hidden, prompt_length: int, scores: Scores | None = None, dense: Sequence[Layer] = ()
) -> Vector | None:
    """`hidden` [C]: the sum over all positions that count, or the largest of each number; [prompt_length, C] where each
    token has a vector. `scores`: of a head that classifies. `dense`: what an embedding goes through, in their order.
    None where a number of the result is not finite."""
    vector: Hidden = hidden / prompt_length if pooling.kind is PoolingKind.MEAN else hidden
    if pooling.classify:
        assert scores is not None, "admitted without a head"
        if not np.isfinite(vector).all():
            return None  # an activation may make it finite
        with np.errstate(all="ignore"):  # what overflows is told as None
            return _finite(_activated(scores(vector), pooling))
    for layer in dense:
        vector = layer.apply(vector)
    vector = vector[..., : pooling.dimensions]
    if pooling.normalize:
        lengths = np.sqrt(np.square(vector, dtype=np.float64).sum(axis=-1, keepdims=True))
        vector = vector / np.maximum(lengths, LEAST_LENGTH)
    return _finite(vector)


def _activated(scores: npt.NDArray[np.float64], pooling: Pooling) -> npt.NDArray[np.float64]:
    if pooling.activation == "":
        return scores
    if pooling.activation == "sigmoid" or scores.shape[-1] == 1:
        # Of a large negative score the exponential would overflow.
        return np.asarray(0.5 * (1.0 + np.tanh(0.5 * scores)))
    exponentials: npt.NDArray[np.float64] = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def _finite(vector: Hidden) -> Vector | None:
    return vector.astype(np.float32) if np.isfinite(vector).all() else None


def to_wire(vector: Vector) -> bytes:
    rows = len(vector) if vector.ndim == 2 else 0
    return rows.to_bytes(ROWS_BYTES, "little") + vector.astype(WIRE).tobytes()


def from_wire(data: bytes) -> Vector:
    rows = int.from_bytes(data[:ROWS_BYTES], "little")
    numbers = np.frombuffer(data, WIRE, offset=ROWS_BYTES).astype(np.float32)
    return numbers.reshape(rows, -1) if rows else numbers


def cosine(first: Vector, second: Vector) -> float:
    """From -1 to 1; 0 where one of them is zero."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    lengths = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    # Rounding takes the quotient of equal vectors beyond 1.
    return max(-1.0, min(1.0, float(a @ b) / max(lengths, LEAST_LENGTH)))
