"""Tile sizes of the CUDA attention and what follows from them. Numbers only: no triton is imported.

Chosen by counting bytes, registers and programs of an H100; not measured.
"""

from typing import Final, NamedTuple

FEWEST_ROWS: Final = 16
"""The height of one tile of the matrix units."""
MOST_DECODE_ROWS: Final = 32
WARP_KEYS: Final = 16
"""That one warp multiplies at a time where each has its own."""
FEW_BYTES: Final = 8 << 10
"""Of keys in one step of a decode: four steps of keys and values on their way leave room for three programs."""
MANY_PROGRAMS: Final = 256
"""Programs that fill a device: with fewer, the keys of a tile are split; with more, tiles grow."""
ENOUGH_PROGRAMS: Final = 128
"""From which on a decode's keys are not shared out: one for each multiprocessor has memory busy, and another launch
would cost more than it gives."""
UNEVEN_TOKENS: Final = 2048
"""Of a context, at least, that is cut although sequences fill the device: less would not be worth another launch."""
MOST_SPLITS: Final = 64
MIXED_SPLITS: Final = 4
"""At least, where prefills and decodes share a step: a long decode would outlast the tiles of the prefills."""
LEAST_SPLIT: Final = 128
"""Tokens of one split at least."""
PARTIAL_TOKENS: Final = 2048
"""Tokens times splits of one step, or parts of a decode: a bound on the memory for partial results."""
WIDE_NUMBERS: Final = 1 << 31
"""Numbers of a layer's keys from which on their places take 64 bits."""
SEARCHED: Final = 128
"""Sequences that one step of the search for a tile's sequence looks at."""
LEAST_STORE_ROWS: Final = 8
STORE_PAIRS: Final = 256
"""Pairs of numbers that rope turns, of one warp."""


DECODE_REGISTERS: Final = {False: 248, True: 168}
"""Of a thread, at most, where decodes read 8 bits with static scales: from sm_90 on three programs of four warps fit,
before two. Said, because the assembler else takes 128 and puts the rest on the stack."""
OWN_KEYS_REGISTERS: Final = {64: 128, 128: 168}
"""Where each warp has its own keys, by the size of a head: four and three programs of four warps fit."""
PADDED_REGISTERS: Final = 248
"""Of sizes between, which take some more."""


LARGE_DECODES: Final = {1: (8, 4), 2: (4, 3), 4: (4, 3)}
"""Warps and stages of a decode with heads of more than 256 numbers, by the bytes of one in the cache: so that 1 and 2
put no registers on the stack, and that two programs of 2 have room on sm_80."""


class Tile(NamedTuple):
    """What one program of `attend` owns: rows are (token, head of the group)."""

    rows: int
    keys: int
    """Of one softmax step, whatever the cache's block size."""
    warps: int
    stages: int
    """Steps of keys and values that are in memory of the multiprocessor at a time."""
    ahead: bool = False
    """Whether scores of the next keys are computed beside the softmax of these."""
    own_keys: bool = False
    """Whether each warp has keys of its own (sweep_bytes.py)."""
    registers: int | None = None
    """Of a thread, at most; None: as many as the assembler takes. `static_registers`: with static scales."""
    static_registers: int | None = None


def choose_tile(
    tokens: int, sequences: int, heads: int, kv_heads: int, head_dim: int, item_size: int, block: int, modern: bool
) -> Tile:
    """By the shapes of the step alone; item_size: bytes of a number in the cache; block: keys of one of its blocks;
    modern: the matrix units read their operands from shared memory (sm_90 and later), which leaves registers for
    larger tiles."""
    group, padded = heads // kv_heads, pad_head(head_dim)
    fewest = max(FEWEST_ROWS, _next_power(group))
    decodes = tokens <= sequences * (fewest // group)
    if decodes and fewest == FEWEST_ROWS and item_size == 1 and padded in (64, 128) and block % WARP_KEYS == 0:
        most = OWN_KEYS_REGISTERS.get(head_dim, PADDED_REGISTERS)
        return Tile(fewest, 4 * WARP_KEYS, 4, stages=4, own_keys=True, registers=most, static_registers=most)
    if decodes and fewest <= MOST_DECODE_ROWS:
        keys = min(128, max(16, FEW_BYTES // (padded * item_size)))
        if padded > 256:
            return Tile(fewest, keys, *LARGE_DECODES[item_size])
        return Tile(fewest, keys, 4, stages=4, static_registers=DECODE_REGISTERS[modern])
    if padded > 256:
        return Tile(max(32 if item_size > 1 else 16, fewest), 32 if item_size < 4 else 16, warps=8, stages=2)
    if padded > 128:
        return Tile(max(64 if modern else 32, fewest), 32, warps=8, stages=2)
    ahead = modern and item_size == 2
    stages = 3 if ahead else 2
    if tokens * heads >= 128 * MANY_PROGRAMS or fewest > 64:
        return Tile(max(128, fewest), 64 if modern else 32, warps=8, stages=stages, ahead=ahead)
    return Tile(64, 64, warps=4 if modern else 8, stages=stages)


def bound_tiles(tokens: int, sequences: int, queries: int) -> int:
    """Tiles of up to `queries` queries that hold `tokens` tokens, numbered as `find_sequence` of places.py does."""
    return tokens // queries + sequences


def count_splits(tokens: int, sequences: int, programs: int, most_length: int) -> int:
    """Programs that share the keys of a tile, where there are `programs` without splits and contexts of at most
    `most_length` tokens: by shapes alone, so that a captured launch replays right with any contexts."""
    useful = min(MOST_SPLITS, most_length // LEAST_SPLIT, PARTIAL_TOKENS // tokens)
    wanted = max(-(-MANY_PROGRAMS // programs), MIXED_SPLITS if tokens > sequences else 1)
    return max(1, min(useful, wanted))


def count_spare(sequences: int, kv_heads: int, most_length: int, uneven: bool) -> int:
    """How many parts more than sequences a decode's keys are shared out to, 0: none are. By shapes and `uneven` alone,
    and right with any contexts, so that a captured launch is."""
    if (sequences * kv_heads >= ENOUGH_PROGRAMS and not uneven) or most_length < 2 * LEAST_SPLIT:
        return 0
    return max(0, min(most_spare(kv_heads), partial_rows(sequences) - sequences))


def most_spare(kv_heads: int) -> int:
    return min(MOST_SPLITS, -(-MANY_PROGRAMS // kv_heads))


def is_uneven(longest: int, total: int, kv_heads: int) -> bool:
    """Whether the longest context of a decode would outlast the others, `total` tokens of all: twice as long as a
    program has where all keys are shared out."""
    return longest >= UNEVEN_TOKENS and longest * MANY_PROGRAMS > 2 * total * kv_heads


def partial_rows(most_tokens: int) -> int:
    """Tokens times splits, or parts, that any step of up to `most_tokens` tokens needs room for."""
    return min(PARTIAL_TOKENS, MOST_SPLITS * most_tokens)


def pad_head(head_dim: int) -> int:
    """Columns of a tile for heads of `head_dim`."""
    return max(16, _next_power(head_dim))


def _next_power(number: int) -> int:
    return 1 << (number - 1).bit_length()
