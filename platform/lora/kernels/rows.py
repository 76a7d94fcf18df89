# mypy: allow-untyped-decorators
"""y[n, row] = rows[row] . x[n], for rows of the output head that an adapter brings, on the CPU this runs on.

A page of rows is what shrink takes for a page of A: PAGE rows side by side, each sum in a fixed order.
"""

from typing import Any

import numpy as np
from numba import njit, prange

from .shrink_page import shrink_tokens
from .vector_code import PAGE


@njit(parallel=True, cache=True)
def multiply_rows(arena: Any, offsets: Any, rows_per_page: int, x: Any, y: Any) -> None:
    """arena as in PageTable; offsets [pages] int64; x [N, in] float32 -> y [N, pages * rows_per_page] float32."""
    tokens, ones = np.arange(len(x)), np.ones(len(x), np.float32)
    groups = rows_per_page // PAGE
    for item in prange(len(offsets) * groups):
        page, group = item // groups, item % groups
        start = offsets[page] + group * PAGE * x.shape[1]
        shrink_tokens(arena, start, start, np.float32(1), ones, x, tokens, y, 0, len(x), item * PAGE)
