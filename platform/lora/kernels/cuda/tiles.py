"""Tile sizes of the CUDA kernels, and the launch bounds that follow from them. Numbers only: no triton is imported."""

from typing import Final

PAGE: Final = 8
"""Ranks of one page."""
ALIGNMENT_BYTES: Final = 128
"""What the start of every page is a multiple of."""
ROWS: Final = 16
"""Tokens of one chunk at most, the height of one tile of the matrix units."""
RANKS: Final = 16
"""Ranks of one tile: two pages."""
ROW_TOKENS: Final = 32
"""Rows of tokens of one page."""
ROW_PROGRAMS: Final = 128
"""That share the rows of the head of a chunk's adapter: they are a few, or as many as the vocabulary."""
COLUMNS: Final = 128
"""Columns of y that a program of expand takes at a time."""
SHRINK_REGISTERS: Final = 112
"""Of a thread, at most: four programs of four warps fit. Said, because the assembler else takes fewer of some shapes
and puts the rest on the stack."""
EXPAND_REGISTERS: Final = {2: 128, 4: 168}
"""As much, by the bytes of a weight: four and three programs fit."""
SHRINK_PROGRAMS: Final = 4
"""Of one multiprocessor, at once: a launch has no more of them, and they share out the work there is."""
EXPAND_PROGRAMS: Final = 4
SHRINK_STAGES: Final = 5
"""Steps under way in a program: one is computed, the others are on their way from memory."""
EXPAND_STAGES: Final = 4
EXPAND_TOGETHER: Final = 8
"""Splits of a sum that are read at a time."""
WIDE_RANKS: Final = {"bfloat16": 64, "float16": 32, "float32": RANKS}
"""Of expand's other tile, by the weights' dtype: as many as the registers hold. What an adapter of more than RANKS has
shrunk is then summed once for all its columns, and weights are on their way as for few ranks."""
WIDE_COLUMNS: Final = 64
WIDE_STAGES: Final = 3
WIDE_TOGETHER: Final = 3
STEP_BYTES: Final = 256
"""Bytes of a weight row that one step of shrink reads."""
SPLIT_INPUTS: Final = 512
"""Inputs that are summed together, where the sum is split."""
MOST_SPLITS: Final = 16
SPLIT_TOKENS: Final = 256
"""Steps of more tokens fill the device with chunks alone: their sums are not split."""
MOST_MEMBERS: Final = 3
"""Linears of one group."""
MOST_CHUNKS: Final = 65535
"""That a grid has room for, in its second and third dimension."""


def bound_chunks(tokens: int, slots: int) -> int:
    """Most chunks that `tokens` tokens of at most `slots` adapters can make: the static size of the grid."""
    return (tokens + (ROWS - 1) * min(tokens, slots)) // ROWS


def most_grid_tokens(slots: int) -> int:
    """Tokens of a step at most, so that the chunks of at most `slots` adapters fit a grid."""
    return ROWS * MOST_CHUNKS - (ROWS - 1) * min(slots, MOST_CHUNKS)


def count_split_inputs(inputs: int, tokens: int, item_size: int) -> int:
    """Inputs that shrink sums together: whole steps, by the shape of x alone."""
    step = STEP_BYTES // item_size
    splits = min(MOST_SPLITS, -(-inputs // SPLIT_INPUTS)) if tokens <= SPLIT_TOKENS else 1
    return -(-inputs // (splits * step)) * step


def round_ranks(pages: int) -> int:
    """Ranks of x A^T that one row of one member has room for, in adapters of up to `pages` pages."""
    return -(-pages * PAGE // RANKS) * RANKS


def intermediate_elements(tokens: int, pages: int) -> int:
    """PageAllocation for every group's x A^T in steps of up to `tokens` tokens and adapters of up to `pages` pages."""
    return max(tokens, MOST_SPLITS * min(tokens, SPLIT_TOKENS)) * MOST_MEMBERS * round_ranks(pages)
