"""Tile sizes of the CUDA attention and what follows from them. Numbers only: no triton is imported.

Chosen by counting bytes, registers and programs of a card; not measured.
"""

from math import log2
from typing import Final, NamedTuple

from loraplex.quant.kernels.cuda.card import MOST_REGISTERS, Card, limit_registers

FEWEST_ROWS: Final = 16
"""The height of one tile of the matrix units."""
MOST_DECODE_ROWS: Final = 32
WARP_KEYS: Final = 16
"""That one warp multiplies at a time where each has its own."""
FEW_BYTES: Final = 8 << 10
"""Of keys in one step of a decode: four steps of keys and values on their way leave room for three programs."""
MANY_PROGRAMS: Final = 16
"""What the number of programs that fill a card is a multiple of: as many parts for each of a few KV heads."""
UNEVEN_TOKENS: Final = 2048
"""Of a context, at least, that is cut although sequences fill the device: less does not outlast them by much."""
MOST_SPLITS: Final = 64
MIXED_SPLITS: Final = 4
"""At least, where prefills and decodes share a step: a long decode would outlast the tiles of the prefills."""
MIXED_DECODE_TOKENS: Final = 32
"""Of a padded step with prompts, up to which its tiles are those of decodes: its sequences tell nothing of how many
tokens each has."""
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


DECODE_PROGRAMS: Final = 2
"""Of a multiprocessor, that a decode has shared memory for wherever two steps of keys leave it."""
STATIC_PROGRAMS: Final = 3
"""At most, where decodes read 8 bits with static scales. Registers are said for as many as fit, because the assembler
else takes 128 and puts the rest on the stack."""
OWN_KEYS_PROGRAMS: Final = {64: 4, 128: 3}
"""Where each warp has its own keys, by the size of a head. Sizes between take some more registers."""


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

    def shared_bytes(self, padded: int, item_size: int) -> int:
        """Of heads padded to `padded` numbers of `item_size` bytes, where operands go to the matrix units by registers:
        keys, values and scales of all steps but the one in use, those of 8 bits widened, and the tile's rows, or its
        result on the way out. An upper bound."""
        scales, widened = (4 * self.keys, 2 * self.keys * padded) if item_size == 1 else (0, 0)
        ahead = (self.stages - 1) * (2 * self.keys * padded * item_size + scales)
        if self.own_keys:
            return ahead
        return max(ahead + widened + 2 * self.rows * (padded + self.keys), 4 * self.rows * padded)


def likely_sequences(tokens: int, sequences: int, mixed: bool) -> int:
    """That tiles are chosen by: Batch.mixed steps have idle ones."""
    if not mixed:
        return sequences
    return tokens if tokens <= MIXED_DECODE_TOKENS else 1


def choose_tile(
    tokens: int, sequences: int, heads: int, kv_heads: int, head_dim: int, item_size: int, block: int, card: Card
) -> Tile:
    """By the shapes of the step and the card alone; item_size: bytes of a number in the cache; block: keys of one of
    its blocks."""
    group, padded = heads // kv_heads, pad_head(head_dim)
    fewest = max(FEWEST_ROWS, _next_power(group))
    if tokens <= sequences * (fewest // group) and fewest <= MOST_DECODE_ROWS:
        return _choose_decode(fewest, head_dim, item_size, block, card)
    # A power of two, near which the warm-up tries sizes.
    enough = 128 << round(log2(many_programs(card)))
    return _choose_prefill(fewest, tokens * heads >= enough or fewest > 64, padded, item_size, card)


def _choose_decode(rows: int, head_dim: int, item_size: int, block: int, card: Card) -> Tile:
    padded = pad_head(head_dim)
    if rows == FEWEST_ROWS and item_size == 1 and padded in (64, 128) and block % WARP_KEYS == 0:
        tile = Tile(rows, 4 * WARP_KEYS, 4, stages=4, own_keys=True)
        most = _limit(tile, OWN_KEYS_PROGRAMS.get(head_dim, 1), padded, item_size, card)
        return tile._replace(registers=most, static_registers=most)
    keys = min(128, max(16, FEW_BYTES // (padded * item_size)))
    warps, stages = LARGE_DECODES[item_size] if padded > 256 else (4, 4)
    tile = Tile(rows, keys, warps, stages)
    while card.resident(tile.shared_bytes(padded, item_size)) < DECODE_PROGRAMS and tile.stages > 2:
        tile = tile._replace(stages=tile.stages - 1)
    if tile.stages < stages or padded > 256:
        tile = tile._replace(registers=MOST_REGISTERS)
    if padded > 256:
        return tile
    return tile._replace(static_registers=_limit(tile, STATIC_PROGRAMS, padded, item_size, card))


def _choose_prefill(fewest: int, many: bool, padded: int, item_size: int, card: Card) -> Tile:
    """Tiles in which the matrix units take operands from registers say how many there are, because the assembler else
    takes 128 and puts the rest on the stack."""
    roomy = card.multiplies_shared
    registers = None if roomy else MOST_REGISTERS
    if padded > 256:
        tile = Tile(max(32 if item_size > 1 else 16, fewest), 32 if item_size < 4 else 16, warps=8, stages=2)
    elif padded > 128:
        tile = Tile(max(64 if roomy else 32, fewest), 32, warps=8, stages=2)
    else:
        ahead = roomy and item_size == 2
        stages = 3 if ahead else 2
        if many:
            tile = Tile(max(128, fewest), 64 if roomy else 32, warps=8, stages=stages, ahead=ahead)
        else:
            tile = Tile(64, 64, warps=4 if roomy else 8, stages=stages)
    while not roomy and tile.keys > 16 and not card.resident(tile.shared_bytes(padded, item_size)):
        tile = tile._replace(keys=tile.keys // 2)
    return tile._replace(registers=registers, static_registers=registers)


def _limit(tile: Tile, programs: int, padded: int, item_size: int, card: Card) -> int:
    """Registers of a thread for up to `programs` programs, as many as shared memory has room for."""
    return limit_registers(min(programs, max(1, card.resident(tile.shared_bytes(padded, item_size)))), tile.warps)


def many_programs(card: Card) -> int:
    """Programs that fill the card: with fewer, the keys of a tile are split; with more, tiles grow."""
    return max(1, 2 * card.processors // MANY_PROGRAMS) * MANY_PROGRAMS


def bound_tiles(tokens: int, sequences: int, queries: int) -> int:
    """Tiles of up to `queries` queries that hold `tokens` tokens, numbered as `find_sequence` of places.py does."""
    return tokens // queries + sequences


def count_splits(tokens: int, sequences: int, programs: int, most_length: int, card: Card) -> int:
    """Programs that share the keys of a tile, where there are `programs` without splits and contexts of at most
    `most_length` tokens: by shapes and the card, so that a captured launch replays right with any contexts."""
    useful = min(MOST_SPLITS, most_length // LEAST_SPLIT, PARTIAL_TOKENS // tokens)
    wanted = max(-(-many_programs(card) // programs), MIXED_SPLITS if tokens > sequences else 1)
    return max(1, min(useful, wanted))


def count_spare(sequences: int, kv_heads: int, most_length: int, uneven: bool, card: Card) -> int:
    """How many parts more than sequences a decode's keys are shared out to, 0: none are. By shapes, `uneven` and the
    card alone, and right with any contexts, so that a captured launch is."""
    if (sequences * kv_heads >= many_programs(card) and not uneven) or most_length < 2 * LEAST_SPLIT:
        return 0
    return max(0, min(most_spare(kv_heads, card), partial_rows(sequences) - sequences))


def most_spare(kv_heads: int, card: Card) -> int:
    return min(MOST_SPLITS, -(-many_programs(card) // kv_heads))


def is_uneven(longest: int, total: int, kv_heads: int, card: Card) -> bool:
    """Whether the longest context of a decode would outlast the others, `total` tokens of all: twice as long as a
    program has where all keys are shared out."""
    return longest >= UNEVEN_TOKENS and longest * many_programs(card) > 2 * total * kv_heads


def partial_rows(most_tokens: int) -> int:
    """Tokens times splits, or parts, that any step of up to `most_tokens` tokens needs room for."""
    return min(PARTIAL_TOKENS, MOST_SPLITS * most_tokens)


def pad_head(head_dim: int) -> int:
    """Columns of a tile for heads of `head_dim`."""
    return max(16, _next_power(head_dim))


def _next_power(number: int) -> int:
    return 1 << (number - 1).bit_length()
