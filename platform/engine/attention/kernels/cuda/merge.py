"""One result of the partial ones of attend.py, each brought to the largest maximum, in one fixed order (triton)."""

import triton
import triton.language as tl

from loraplex.quant.kernels.cuda.chain import wait_for_previous

from .keys import LOWEST
from .places import count_parts, find_first_part, find_sequence, see_keys, share_tiles, split_keys


@triton.jit(do_not_specialize=["sequences", "tokens", "splits"])
def merge(
    output: tl.tensor, sums: tl.tensor, states: tl.tensor, starts: tl.tensor, lengths: tl.tensor,
    sequences: tl.tensor, tokens: tl.tensor, splits: tl.tensor,
    WINDOW: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr, PARTS: tl.constexpr, SEARCHED: tl.constexpr, LEAST_SPLIT: tl.constexpr, SHARED: tl.constexpr,
    CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (T, H). Shapes as in attend.py; splits: with SHARED `spare`; PARTS: a power of two, no less. Tokens whose
    keys were not split, and those of no sequence, are left alone; but each program waits for the end of attend."""
    token, head = tl.program_id(0), tl.program_id(1)
    sequence = find_sequence(starts, sequences, token, 0, SEARCHED)
    begin, end = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    first = begin + (token - begin) // QUERIES * QUERIES
    offset = tl.load(lengths + sequence) - end
    first_key, last_key = see_keys(offset + first, offset + min(first + QUERIES, end) - 1, WINDOW)
    place, step = token, tokens
    if SHARED:
        most = share_tiles(lengths, sequences, splits, WINDOW, KEYS, SEARCHED, LEAST_SPLIT)
        place, step = find_first_part(lengths, sequences, sequence, most, WINDOW, KEYS, SEARCHED), 1
        splits = count_parts((last_key + KEYS - 1) // KEYS - first_key // KEYS, most)
    _, _, used = split_keys(first_key, last_key, splits, KEYS, LEAST_SPLIT)
    wait_for_previous(CHAINED)
    if (token >= end) | (used <= 1):
        return
    part, lanes = tl.arange(0, PARTS), tl.arange(0, PADDED)
    there = part < used
    rows = (part.to(tl.int64) * step + place) * HEADS + head
    top = tl.load(states + rows * 2, mask=there, other=LOWEST)
    share = tl.exp2(top - tl.max(top, 0))
    total = tl.sum(share * tl.load(states + rows * 2 + 1, mask=there, other=0.0), 0)
    inner = (lanes < SIZE) | (SIZE == PADDED)
    parts = tl.load(sums + rows[:, None] * SIZE + lanes[None, :], mask=there[:, None] & inner[None, :], other=0.0)
    result = tl.sum(parts * share[:, None], 0) / total
    places = output + (token.to(tl.int64) * HEADS + head) * SIZE + lanes
    tl.store(places, result.to(output.dtype.element_ty), mask=inner)
