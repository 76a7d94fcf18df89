"""Which queries a program has, and which of the sequence's keys it sees (triton). Shapes as in attend.py.

The tiles of sequence s begin at number starts[s] // QUERIES + s: enough room for all of them, whatever the lengths, and
found without a running sum. A number that no queries are left for is a tile without work.
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
