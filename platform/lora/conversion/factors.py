"""The change of a weight as a product of two thin matrices, and the thinnest product near it."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..files.config_fields import MAX_RANK

Matrix = NDArray[np.float64]

MAX_COLUMNS: Final = 1024
"""The thin side of anything that is decomposed: beyond it the time and the memory of an upload end."""
EXACT: Final = 1e-6
"""A relative error below this is lost in the rounding to float32."""


class Unfit(ValueError):
    """A module's tensors are not what they must be; the message goes on from the module's name."""


class TooLarge(Unfit):
    """Its LoRA would take more time or memory than an upload may."""


@dataclass(frozen=True, slots=True)
class Change:
    """delta = up @ down. `up` is [out, rank], `down` is [rank, in]."""

    up: Matrix
    down: Matrix
    square: float
    """Squared Frobenius norm of what the adapter adds to the weight."""
    lost: float = 0.0
    """Squared Frobenius norm of what up @ down leaves out of it."""

    @property
    def rank(self) -> int:
        return int(self.up.shape[1])

    @property
    def error(self) -> float:
        """Relative, in the Frobenius norm."""
        return relative(self.lost, self.square)


@dataclass(frozen=True, slots=True)
class Singular:
    """A matrix as left @ diag(values) @ right, values falling."""

    left: Matrix
    values: Matrix
    right: Matrix


def thin(up: Matrix, down: Matrix) -> Change:
    """The product itself where its rank can be served and is worth it, else the nearest one of at most MAX_RANK."""
    outputs, rank, inputs = up.shape[0], up.shape[1], down.shape[1]
    if rank <= min(MAX_RANK, outputs, inputs):
        return Change(up, down, float(np.sum((up.T @ up) * (down @ down.T))))
    parts = decompose_product(up, down)
    kept, square, lost = choose_rank(parts.values)
    root = np.sqrt(parts.values[:kept])
    return Change(parts.left[:, :kept] * root, root[:, None] * parts.right[:kept], square, lost)


def decompose_product(up: Matrix, down: Matrix) -> Singular:
    """By two QRs, so that nothing larger than [rank, rank] is decomposed."""
    left, upper = np.linalg.qr(up)
    right, lower = np.linalg.qr(down.T)
    parts = decompose(upper @ lower.T)
    return Singular(left @ parts.left, parts.values, parts.right @ right.T)


def decompose(matrix: Matrix) -> Singular:
    return Singular(*np.linalg.svd(matrix, full_matrices=False))


def choose_rank(values: Matrix) -> tuple[int, float, float]:
    """(rank, square of all, square of what is cut off) for falling singular values: the fewest that lose nothing."""
    squares = values**2
    square = float(squares.sum())
    tail = np.append(np.cumsum(squares[::-1])[::-1], 0.0)
    needed = int(np.argmax(tail <= EXACT**2 * square))
    kept = min(needed, MAX_RANK)
    return kept, square, float(tail[kept])


def relative(lost: float, square: float) -> float:
    return math.sqrt(lost / square) if square else 0.0
