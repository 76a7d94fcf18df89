"""Tile sizes of the engine's CUDA kernels. Numbers only: no triton is imported."""

from typing import Final

COLUMNS: Final = 1024
"""Columns of one program where a row is shared out."""
COLUMN_WARPS: Final = 4
"""Eight elements a thread, 16 bytes of 16-bit ones."""
ROW_ELEMENTS: Final = 16
"""Elements of a thread where a program has a whole row: little enough for many threads to share the wait for memory."""
REGISTERS: Final = 64
"""Of a thread, at most, as many as the longest row leaves it. Said, because the assembler of triton 3.6 else takes 40
for a row of float32 and puts the rest on the stack."""

GATE_COLUMNS: Final = 16384
"""Longest product of gate and up that a program holds and casts: wider ones would not fit its registers."""


def row_warps(width: int) -> int:
    """Warps of a program that holds a row of `width` elements, a power of 2."""
    return min(32, max(1, width // (32 * ROW_ELEMENTS)))
