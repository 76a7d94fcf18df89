"""The chunk list of one step: pieces of up to ROWS tokens of one adapter, one for each row of the kernels' grid."""

from typing import Final

import numpy as np

from .kernels.tiles import ROWS

NO_SLOT: Final = -1
"""Slot of a chunk past the end of the list: its programs end at once."""


def make_chunks(segment_starts: np.ndarray, segment_slots: np.ndarray) -> np.ndarray:
    """[C, 3] int32 of (slot, first row, number of rows), from a LoraBatch's segments; rows of sorted_tokens."""
    pieces = -(-np.diff(segment_starts) // ROWS)
    segment = np.repeat(np.arange(len(segment_slots)), pieces)
    piece = np.arange(len(segment)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = segment_starts[segment] + ROWS * piece
    count = np.minimum(ROWS, segment_starts[segment + 1] - first)
    return np.stack([segment_slots[segment], first, count], axis=1).astype(np.int32)
