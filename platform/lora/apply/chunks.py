"""The chunk list of one step: pieces of up to ROWS tokens of one adapter, one for each row of the kernels' grid."""

import numpy as np

from ..kernels.cuda.tiles import ROWS


def make_chunks(segment_starts: np.ndarray, segment_slots: np.ndarray) -> np.ndarray:
    """[C, 3] int32 of (slot, first row, number of rows), from a LoraBatch's segments; rows of sorted_tokens."""
    counts = segment_starts[1:] - segment_starts[:-1]
    pieces = (counts + (ROWS - 1)) // ROWS
    chunks = np.empty((int(pieces.sum()), 3), np.int32)
    slots, firsts, lengths = chunks.T
    if len(chunks) == len(counts):
        slots[:], firsts[:], lengths[:] = segment_slots, segment_starts[:-1], counts
        return chunks
    segments = np.arange(len(counts)).repeat(pieces)
    before = ROWS * (np.arange(len(segments)) - (pieces.cumsum() - pieces)[segments])
    slots[:], firsts[:] = segment_slots[segments], segment_starts[segments] + before
    lengths[:] = np.minimum(ROWS, counts[segments] - before)
    return chunks
