"""Tile sizes of the CUDA kernels, and the launch bounds that follow from them. Numbers only: no triton is imported."""

from typing import Final, NamedTuple

from loraplex.quant.kernels.cuda.card import Card, limit_registers

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
COLUMNS: Final = 128
"""Columns of y that a program of expand takes at a time."""
WARPS: Final = 4
"""Of a program."""
SHRINK_REGISTERS: Final = 112
"""Of a thread, at most: four programs fit. Said, because the assembler else takes fewer of some shapes and puts the
rest on the stack."""
SHRINK_PROGRAMS: Final = 4
"""Of one multiprocessor, at once, at most: a launch has no more of them, and they share out the work there is."""
FEW_SHRINK_PROGRAMS: Final = 3
"""Steps of shrink are as many as leave room for these."""
EXPAND_PROGRAMS: Final = {2: 4, 4: 3}
"""As much, by the bytes of a weight."""
MEETING_PROGRAMS: Final = 3
"""As much, of both kernels in one launch, for weights of 16 bits: wider ones put registers on the stack (sm_120)."""
SHRINK_STAGES: Final = 5
"""Steps under way in a program, at most: one is computed, the others are on their way from memory."""
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


class Share(NamedTuple):
    """What one kernel takes of a card's multiprocessors."""

    programs: int
    """Of one, at once."""
    stages: int
    registers: int
    """Of a thread, at most."""


def shrink_share(card: Card) -> Share:
    stages = SHRINK_STAGES
    while stages > 2 and card.resident(shrink_bytes(stages)) < FEW_SHRINK_PROGRAMS:
        stages -= 1
    programs = max(1, min(SHRINK_PROGRAMS, card.resident(shrink_bytes(stages))))
    registers = SHRINK_REGISTERS if programs == SHRINK_PROGRAMS else limit_registers(programs, WARPS)
    return Share(programs, stages, registers)


def expand_share(item_size: int, card: Card) -> Share:
    programs = max(1, min(EXPAND_PROGRAMS[item_size], card.resident(expand_bytes(item_size))))
    return Share(programs, EXPAND_STAGES, limit_registers(programs, WARPS))


def meeting_share(card: Card) -> Share:
    """Of both kernels in one launch; `stages` are those of shrink. All its programs must be on the card at once."""
    stages = shrink_share(card).stages
    most = card.resident(max(shrink_bytes(stages), expand_bytes(item_size=2)))
    programs = max(1, min(MEETING_PROGRAMS, most))
    return Share(programs, stages, limit_registers(programs, WARPS))


def shrink_bytes(stages: int) -> int:
    """Of shared memory: x and A of all steps but the one in use, and sums of four warps."""
    return (stages - 1) * (ROWS + RANKS) * STEP_BYTES + 4 * ROWS * RANKS


def expand_bytes(item_size: int) -> int:
    """Of shared memory, at most: y and B of all blocks of columns but the one in use, and one more of y."""
    return (EXPAND_STAGES - 1) * (ROWS + RANKS) * COLUMNS * item_size + ROWS * COLUMNS * item_size


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
