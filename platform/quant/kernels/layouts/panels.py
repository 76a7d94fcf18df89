"""How weights W [N, K] lie in memory for the kernels: panels of PANEL outputs, two inputs side by side, so that a sweep
over a panel reads memory in order.

numba has no 16-bit floats; the element type says what is stored and which kernel takes it:
    uint16            bfloat16 for vector registers    [panels, pairs, PANEL, 2]
    uint32            bfloat16 for dot products        [panels, pairs, PANEL], two inputs a word, whole steps of pairs
    int16, float32    float16 and float32              [panels, pairs, 2, PANEL]
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..instructions.dots import HAS_BFLOAT16, STEP
from ..instructions.tile import PANEL

CACHE_LINE: Final = 64
BLOCK_PANELS: Final = 16
"""That are packed at a time: what packing needs besides the result is as large as they are."""


def pack_weight(weight: np.ndarray, for_dots: bool = HAS_BFLOAT16) -> np.ndarray:
    """W [N, K] of uint16 (bfloat16 bits), int16 (float16 bits) or float32 -> panels, one-dimensional.

    Zeros where N or K do not fill them. `for_dots` counts for bfloat16 only.
    """
    words = for_dots and weight.dtype == np.uint16
    outputs, inputs = weight.shape
    panels, pairs = -(-outputs // PANEL), -(-inputs // STEP) * STEP // 2 if words else (inputs + 1) // 2
    padded = np.zeros((panels * PANEL, pairs * 2), weight.dtype)
    padded[:outputs, :inputs] = weight
    split = padded.reshape(panels, PANEL, pairs, 2)
    order = (0, 2, 1, 3) if weight.dtype == np.uint16 else (0, 2, 3, 1)
    packed = aligned(split.size, weight.dtype)
    packed.reshape([split.shape[axis] for axis in order])[:] = split.transpose(order)
    return packed.view(np.uint32) if words else packed


def pack_in_blocks(rows: int, pack: Callable[[int, int], np.ndarray]) -> np.ndarray:
    """All panels of `rows` outputs, one-dimensional; `pack(first, last)` gives those of some of them."""
    panels, step = -(-rows // PANEL), BLOCK_PANELS * PANEL
    packed, filled = np.empty(0, np.uint8), 0
    for first in range(0, rows, step):
        block = pack(first, min(first + step, rows))
        if not first:
            packed = aligned(block.size // min(panels, BLOCK_PANELS) * panels, block.dtype)
        packed[filled : filled + block.size] = block
        filled += block.size
    return packed


def aligned(size: int, dtype: Any) -> np.ndarray:
    """[size], uninitialized, from the start of a cache line: vectors and matrix rows then never lie across two."""
    memory = np.empty(size * np.dtype(dtype).itemsize + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size * np.dtype(dtype).itemsize].view(dtype)


def unpack_columns(panels: np.ndarray, outputs: int, first: int, last: int) -> np.ndarray:
    """Rows `first` (even) to `last` of W^T [last - first, N]."""
    side_by_side = panels.dtype in (np.uint16, np.uint32)
    bits = panels.view(np.uint16) if side_by_side else panels
    split = bits.reshape(-(-outputs // PANEL), -1, 2 * PANEL)[:, first // 2 : (last + 1) // 2]
    shape = (*split.shape[:2], PANEL, 2) if side_by_side else (*split.shape[:2], 2, PANEL)
    by_input = split.reshape(shape).transpose((1, 3, 0, 2) if side_by_side else (1, 2, 0, 3))
    return np.ascontiguousarray(by_input.reshape(-1, len(split) * PANEL)[: last - first, :outputs])
