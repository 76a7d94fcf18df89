"""Where each new token of a step stands: in its sequence and in the cache.

Shapes: T new tokens, S sequences, P blocks of the longest block table.
"""

from typing import Any

import numpy as np
from numba import njit

from .vector import Array


@njit(cache=True, nogil=True)
def lay_out(counts: Array, starts: Array, block_tables: Array, block_size: int) -> tuple[Any, Any, Any, Any, Any]:
    """counts and starts [S] int64, block_tables [S, P] -> owners, positions and slots of the tokens [T] int64,

    query_starts [S + 1] and context_lengths [S] int32.
    """
    sequences = len(counts)
    owners, positions, slots = np.empty((3, counts.sum()), np.int64)
    query_starts, context_lengths = np.empty(sequences + 1, np.int32), np.empty(sequences, np.int32)
    token = 0
    for sequence in range(sequences):
        query_starts[sequence] = token
        end = starts[sequence] + counts[sequence]
        context_lengths[sequence] = end
        for position in range(starts[sequence], end):
            owners[token], positions[token] = sequence, position
            block, offset = position // block_size, position % block_size
            slots[token] = np.int64(block_tables[sequence, block]) * block_size + offset
            token += 1
    query_starts[sequences] = token
    return owners, positions, slots, query_starts, context_lengths
