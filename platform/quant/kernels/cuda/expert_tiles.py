"""Tile sizes of products of experts, and what follows from them. Numbers only: no triton is imported.

Shapes: T tokens with K of E experts each make P = T K rows, those of an expert side by side. A piece is some rows of
one expert, as many as a tile has at most.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class FloatTile(NamedTuple):
    """What one program takes: some outputs of an expert, for a piece. The weights take the tall side of the matrix
    units."""

    columns: int
    step: int
    """Inputs of one pass of the loop."""
    warps: int
    stages: int


PIECES: Final = (8, 16, 64)
"""Rows of a piece: those of the tiles of `multiply`."""
FULL: Final = 0.5
"""Share of a piece that the rows of an expert fill on average, at least: else pieces are smaller."""
FLOAT_TILES: Final[Mapping[int, FloatTile]] = {
    8: FloatTile(columns=64, step=128, warps=4, stages=4),
    16: FloatTile(columns=64, step=128, warps=4, stages=4),
    64: FloatTile(columns=128, step=64, warps=8, stages=3),
}
"""By the rows of a piece, for floats of 16 bits."""
EXACT_TILE: Final = FloatTile(columns=32, step=32, warps=4, stages=2)
"""For floats of 32 bits."""


def choose_piece(tokens: int, per_token: int, experts: int) -> int:
    """Rows of a piece, by the shapes alone."""
    average = tokens * per_token / experts
    return max((rows for rows in PIECES if average >= FULL * rows), default=PIECES[0])


def bound_pieces(tokens: int, per_token: int, experts: int, rows: int) -> int:
    """Most pieces that the rows of so many tokens can make: the static size of a grid."""
    pairs = tokens * per_token
    return (pairs + (rows - 1) * min(pairs, experts)) // rows
