"""Where each new token of a step stands, for a device beside the host: `kernels/token_layout.py` by numpy alone."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64] | NDArray[np.int32]


def lay_out(counts: Ints, starts: Ints, block_tables: Ints, block_size: int) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Arguments and results as of the kernel."""
    query_starts = np.zeros(len(counts) + 1, np.int32)
    counts.cumsum(out=query_starts[1:])
    owners = np.arange(len(counts)).repeat(counts)
    positions = np.arange(len(owners)) + (starts - query_starts[:-1])[owners]
    blocks = block_tables[owners, positions // block_size].astype(np.int64)
    slots = blocks * block_size + positions % block_size
    return owners, positions, slots, query_starts, (starts + counts).astype(np.int32)
