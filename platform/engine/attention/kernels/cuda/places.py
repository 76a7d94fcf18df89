"""Which queries a program has, and which of the sequence's keys it sees (triton). Shapes as in attend.py.

The tiles of sequence s begin at number starts[s] // QUERIES + s: enough room for all of them, whatever the lengths, and
found without a running sum. A number that no queries are left for is a tile without work.

A decode has one query of each sequence at most, and all that its sequences see is shared out together: parts of about
as many keys, one of a sequence at least, numbered sequence after sequence.
"""

import triton
import triton.language as tl


@triton.jit
def find_sequence(
    starts: tl.tensor, sequences: tl.tensor, index: tl.tensor, QUERIES: tl.constexpr, SEARCHED: tl.constexpr
) -> tl.tensor:
    """The sequence of a tile of QUERIES queries; with QUERIES 0, that of a token."""
    before = tl.zeros((SEARCHED,), tl.int32)
    for first in range(0, sequences, SEARCHED):
        sequence = first + tl.arange(0, SEARCHED)
        exists = sequence < sequences
        begin = tl.load(starts + sequence, mask=exists, other=0)
        if QUERIES:
            begin = begin // QUERIES + sequence
        before += (exists & (begin <= index)).to(tl.int32)
    return tl.sum(before, 0) - 1


@triton.jit
def see_keys(first: tl.tensor, last: tl.tensor, WINDOW: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """(first, last + 1) of the keys that queries at positions `first` to `last` see; none for positions below 0."""
    begin = max(first - (WINDOW - 1), 0) if WINDOW else first * 0
    return begin, max(last + 1, begin)


@triton.jit
def split_keys(
    begin: tl.tensor, end: tl.tensor, splits: tl.tensor, KEYS: tl.constexpr, LEAST_SPLIT: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """(first tile of keys, tiles of one split, splits that have any): tiles lie at multiples of KEYS."""
    first = begin // KEYS
    tiles = tl.where(end > begin, (end + KEYS - 1) // KEYS - first, 0)
    each = max((tiles + splits - 1) // splits, LEAST_SPLIT // KEYS)
    return first, each, (tiles + each - 1) // each


@triton.jit
def see_tiles(
    lengths: tl.tensor, sequences: tl.tensor, first: tl.tensor, WINDOW: tl.constexpr, KEYS: tl.constexpr,
    SEARCHED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """[SEARCHED] tiles of keys that the last token of each sequence sees, from sequence `first` on; 0 past the last."""
    sequence = first + tl.arange(0, SEARCHED)
    end = tl.load(lengths + sequence, mask=sequence < sequences, other=0)
    begin = tl.maximum(end - WINDOW, 0) if WINDOW else end * 0
    return (end + KEYS - 1) // KEYS - begin // KEYS


@triton.jit
def share_tiles(
    lengths: tl.tensor, sequences: tl.tensor, spare: tl.tensor, WINDOW: tl.constexpr, KEYS: tl.constexpr,
    SEARCHED: tl.constexpr, LEAST_SPLIT: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Most tiles of keys in one part, so that there are no more than `spare` parts beyond one a sequence."""
    total = spare * 0
    for first in range(0, sequences, SEARCHED):
        total += tl.sum(see_tiles(lengths, sequences, first, WINDOW, KEYS, SEARCHED), 0)
    return max((total + spare - 1) // spare, LEAST_SPLIT // KEYS)


@triton.jit
def find_part(
    lengths: tl.tensor, sequences: tl.tensor, number: tl.tensor, most: tl.tensor, WINDOW: tl.constexpr,
    KEYS: tl.constexpr, SEARCHED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """(sequence of part `number`, number of its first part); past the last part no sequence: as many as there are, or
    more."""
    sequence, before, running = number * 0, number * 0, number * 0
    for first in range(0, sequences, SEARCHED):
        parts = count_parts(see_tiles(lengths, sequences, first, WINDOW, KEYS, SEARCHED), most)
        ends = running + tl.cumsum(parts, 0)
        past = ends <= number
        sequence += tl.sum(past.to(tl.int32), 0)
        before = max(before, tl.max(tl.where(past, ends, 0), 0))
        running = tl.max(ends, 0)
    return sequence, before


@triton.jit
def count_parts(tiles: tl.tensor, most: tl.tensor) -> tl.tensor:
    return tl.maximum((tiles + most - 1) // most, 1)
