# mypy: allow-untyped-decorators
"""y[t] += scaling * (x[t] A^T) B over rank pages, for the CPU this runs on (numba, no compiler needed).

Two sweeps: shrink, h = scale * x A^T, by (segment, kind, page); expand, y += h B, by (segment, kind, columns), or by
whoever goes through y anyway (`expand_rows`). `intermediate.py` chooses what runs a tile of either. Workers take items
as they get on: ranks differ, and so does what else the processor has to do.
numba has no 16-bit floats: uint16 stands for bfloat16 bits, int16 for float16 bits.
"""

from typing import Any, Final

import numpy as np
from numba import njit, prange

from .amx.registers import HAS_MATRIX
from .amx.shrink import BLOCK, scratch_bytes
from .claim import claim, counter, shares_of
from .intermediate import (
    count_in_registers,
    expand_apart,
    expand_columns,
    new_intermediate,
    shrink_registers,
    shrink_tokens,
)
from .vector_code import LANES, PAGE

COLUMNS: Final = 32 * LANES
"""Least columns of y in one work item of expand."""
ITEMS: Final = 4
"""Of expand for each worker at least, before an item takes more columns."""
TOKENS: Final = 64 if HAS_MATRIX else 48
"""Most tokens of one work item; a multiple of the tiles that take most of them."""


@njit
def _fill_work(items: Any, starts: Any, ends: Any, widths: Any, step: int, first: int, last: int) -> int:
    """Fill items as far as they reach; returns how many there are."""
    count = 0
    for segment in range(first, last):
        for row in range(starts[segment], ends[segment], TOKENS):
            for member in range(widths.shape[1]):
                for position in range(0, widths[segment, member], step):
                    if count < len(items):
                        items[count, 0], items[count, 1] = segment, member
                        items[count, 2], items[count, 3] = position, row
                    count += 1
    return count


@njit
def _work(starts: Any, ends: Any, widths: Any, step: int, first: int, last: int) -> Any:
    """Items (segment, member, position, row): each `step` of widths[segment, member], each TOKENS of its rows.

    Of the segments from `first` up to `last`.
    """
    items = np.empty((_fill_work(np.empty((0, 4), np.int64), starts, ends, widths, step, first, last), 4), np.int64)
    _fill_work(items, starts, ends, widths, step, first, last)
    return items


@njit
def _fill_blocks(items: Any, starts: Any, ends: Any, pages: Any, parts: int) -> int:
    """Fill items as far as they reach; returns how many there are."""
    count = 0
    for segment in range(len(ends)):
        step = max(1, (pages[segment] + parts - 1) // parts)
        for row in range(starts[segment], ends[segment], BLOCK):
            for page in range(0, pages[segment], step):
                if count < len(items):
                    items[count, 0], items[count, 1] = segment, page
                    items[count, 2] = min(page + step, pages[segment])
                    items[count, 3], items[count, 4] = row, min(row + BLOCK, ends[segment])
                count += 1
    return count


@njit
def _blocks(starts: Any, ends: Any, ranks: Any, workers: int) -> Any:
    """Items of shrink_registers: pages of all members together, in so many parts that every worker has some."""
    pages, blocks, none = np.zeros(len(ends), np.int64), 0, np.empty((0, 5), np.int64)
    for segment in range(len(ends)):
        for member in range(ranks.shape[1]):
            pages[segment] += (ranks[segment, member] + PAGE - 1) // PAGE
        blocks += (ends[segment] - starts[segment] + BLOCK - 1) // BLOCK
    if not blocks:
        return none
    parts = (2 * workers + blocks - 1) // blocks
    items = np.empty((_fill_blocks(none, starts, ends, pages, parts), 5), np.int64)
    _fill_blocks(items, starts, ends, pages, parts)
    return items


@njit
def _layer_of_page(offset: Any, slots: Any, kinds: Any, firsts: Any, inputs: int, layer: int, item: Any) -> int:
    """Where the A rows of a shrink item begin in the arena."""
    segment, member, position, _ = item
    outputs = firsts[member + 1] - firsts[member]
    return int(offset[slots[segment], kinds[member], position // PAGE] + layer * PAGE * (inputs + outputs))


@njit
def ranks_of(rank: Any, slots: Any, kinds: Any, layer: int) -> Any:
    """[segments, members] of a group of linears."""
    ranks = np.empty((len(slots), len(kinds)), np.int64)
    for segment in range(len(slots)):
        for member in range(len(kinds)):
            ranks[segment, member] = rank[slots[segment], kinds[member], layer]
    return ranks


@njit
def _widths_of(ranks: Any, firsts: Any) -> Any:
    """Columns [segments, members] that an adapter adds to."""
    return (firsts[1:] - firsts[:-1]) * (ranks > 0)


@njit(parallel=True)
def shrink(
    y: Any, x: Any, layer: int, kinds: Any, firsts: Any, arena: Any, offset: Any, ranks: Any, scaling: Any, scales: Any,
    tokens: Any, starts: Any, slots: Any, workers: int,
) -> Any:  # fmt: skip
    """h [len(tokens), members * most ranks], scaled, for what adds to y; the others as in add_lora."""
    inputs, room = x.shape[1], offset.shape[2] * PAGE
    h = new_intermediate(arena, y, len(tokens), len(kinds) * room)
    rests = starts[:-1].astype(np.int64)
    for segment in range(len(slots)):
        rests[segment] += count_in_registers(h, starts[segment + 1] - starts[segment])
    blocks = _blocks(starts[:-1], rests, ranks, workers)
    if len(blocks):
        scratch, next_block = np.empty((workers, scratch_bytes(inputs)), np.uint8), counter(workers)
        for worker in prange(workers):
            block = np.int64(worker)
            while block < len(blocks):
                shrink_registers(
                    arena, offset, slots, kinds, firsts, layer, scaling, scales, ranks, x, tokens, h, blocks[block],
                    scratch[worker].ctypes.data,
                )  # fmt: skip
                block = claim(next_block)
    # The first share of each worker is its own: it takes the next one while it works, to bring its weights near.
    items, taken = _work(rests, starts[1:], ranks, PAGE, 0, len(slots)), counter(workers)
    shares = shares_of(len(items), workers)
    for worker in prange(workers):
        share = np.int64(worker)
        while share < len(shares) - 1:
            upcoming = claim(taken)
            for index in range(shares[share], shares[share + 1]):
                segment, member, position, row = items[index, 0], items[index, 1], items[index, 2], items[index, 3]
                then = index + 1 if index + 1 < shares[share + 1] else shares[min(upcoming, len(shares) - 2)]
                start = _layer_of_page(offset, slots, kinds, firsts, inputs, layer, items[index])
                following = _layer_of_page(offset, slots, kinds, firsts, inputs, layer, items[then])
                end = min(row + TOKENS, starts[segment + 1])
                factor, column = scaling[slots[segment], kinds[member], layer], member * room + position
                shrink_tokens(arena, start, following, factor, scales, x, tokens, h, row, end, column)
            share = upcoming
    return h


@njit
def _columns_of_item(widths: Any, starts: Any, first: int, last: int, workers: int) -> int:
    """Of expand, a multiple of COLUMNS: rows of B are read in one go where there is enough work for all."""
    columns = 0
    for segment in range(first, last):
        columns += widths[segment].sum() * ((starts[segment + 1] - starts[segment] + TOKENS - 1) // TOKENS)
    return COLUMNS * max(1, columns // (ITEMS * workers * COLUMNS))


@njit
def _expand(
    y: Any, h: Any, inputs: int, layer: int, kinds: Any, firsts: Any, arena: Any, offset: Any, ranks: Any,
    tokens: Any, slots: Any, segment: int, member: int, position: int, columns: int, row: int, end: int,
) -> None:  # fmt: skip
    """The columns from `position` on of one linear, for the sorted tokens row to end of one segment."""
    outputs, own = firsts[member + 1] - firsts[member], ranks[segment, member]
    pages = offset[slots[segment], kinds[member]]
    start = PAGE * (layer * (inputs + outputs) + inputs) + position
    h_column, y_column = member * offset.shape[2] * PAGE, firsts[member] + position
    expand_columns(arena, pages, start, outputs, own, tokens, h, row, end, h_column, y, y_column, columns)


@njit
def expand_rows(
    y: Any, h: Any, inputs: int, layer: int, kinds: Any, firsts: Any, arena: Any, offset: Any, ranks: Any,
    tokens: Any, starts: Any, slots: Any, first: int, last: int, member: int, position: int, columns: int,
) -> None:  # fmt: skip
    """y[first:last] += h B in `columns` columns of one linear, from `position` on; the others as in shrink."""
    for segment in range(len(slots)):
        if ranks[segment, member]:
            own = tokens[starts[segment] : starts[segment + 1]]
            row, end = np.searchsorted(own, first), np.searchsorted(own, last)
            if row < end:
                _expand(
                    y, h, inputs, layer, kinds, firsts, arena, offset, ranks, tokens, slots, segment, member, position,
                    columns, starts[segment] + row, starts[segment] + end,
                )  # fmt: skip


@njit
def _only_segment(tokens: Any, starts: Any, first: int, last: int) -> int:
    """Of the adapter that all tokens from `first` to `last` have, and no other; -1 if there is none."""
    found = -1
    for segment in range(len(starts) - 1):
        own = tokens[starts[segment] : starts[segment + 1]]
        row, end = np.searchsorted(own, first), np.searchsorted(own, last)
        if row < end:
            if found >= 0 or end - row < last - first:
                return -1
            found = segment
    return found


@njit
def expand_rows_apart(
    room: Any, y: Any, h: Any, inputs: int, layer: int, kinds: Any, firsts: Any, arena: Any, offset: Any, ranks: Any,
    tokens: Any, starts: Any, slots: Any, first: int, last: int, position: int, columns: int,
) -> bool:  # fmt: skip
    """room [rows, members * COLUMNS or more] = y[first:last] + h B in `columns` columns of each linear; y stays as is.

    False, and nothing is done, where that takes more than matrix registers; the others as in expand_rows.
    """
    segment = _only_segment(tokens, starts, first, last)
    if segment < 0 or ranks[segment].min() == 0:
        return False
    row = starts[segment] + np.searchsorted(tokens[starts[segment] : starts[segment + 1]], first)
    for member in range(len(kinds)):
        outputs, pages = firsts[member + 1] - firsts[member], offset[slots[segment], kinds[member]]
        start = PAGE * (layer * (inputs + outputs) + inputs) + position
        is_done = expand_apart(
            arena, pages, start, outputs, ranks[segment, member], first, h, row, last - first,
            member * offset.shape[2] * PAGE, y, firsts[member] + position, room, member * COLUMNS, columns,
        )  # fmt: skip
        if not is_done:
            return False
    return True


@njit(parallel=True, cache=True)
def add_lora(
    y: Any, x: Any, layer: int, kinds: Any, firsts: Any, arena: Any, offset: Any, rank: Any, scaling: Any,
    scales: Any, sorted_tokens: Any, starts: Any, slots: Any, rounds: Any, workers: int,
) -> None:  # fmt: skip
    """Arrays as in PageTable and LoraBatch, all contiguous. kinds [members]: index of each linear of the group;
    firsts [members + 1]: member m owns y's columns firsts[m] to firsts[m + 1]. A token stands once in each round."""
    tokens, ranks = sorted_tokens.astype(np.int64), ranks_of(rank, slots, kinds, layer)
    h = shrink(y, x, layer, kinds, firsts, arena, offset, ranks, scaling, scales, tokens, starts, slots, workers)
    widths = _widths_of(ranks, firsts)
    for number in range(len(rounds) - 1):
        step = _columns_of_item(widths, starts, rounds[number], rounds[number + 1], workers)
        items = _work(starts[:-1], starts[1:], widths, step, rounds[number], rounds[number + 1])
        taken, shares = counter(workers), shares_of(len(items), workers)
        for worker in prange(workers):
            share = np.int64(worker)
            while share < len(shares) - 1:
                for index in range(shares[share], shares[share + 1]):
                    segment, member, position, row = items[index, 0], items[index, 1], items[index, 2], items[index, 3]
                    _expand(
                        y, h, x.shape[1], layer, kinds, firsts, arena, offset, ranks, tokens, slots, segment, member,
                        position, min(step, widths[segment, member] - position),
                        row, min(row + TOKENS, starts[segment + 1]),
                    )  # fmt: skip
                share = claim(taken)


_shrink_alone: Final = njit(shrink.py_func)


@njit
def add_lora_alone(
    y: Any, x: Any, layer: int, kinds: Any, firsts: Any, arena: Any, offset: Any, rank: Any, scaling: Any,
    scales: Any, sorted_tokens: Any, starts: Any, slots: Any,
) -> None:  # fmt: skip
    """As add_lora, the same bits, by the thread that calls: for callers that share out many such calls."""
    tokens, ranks = sorted_tokens.astype(np.int64), ranks_of(rank, slots, kinds, layer)
    h = _shrink_alone(y, x, layer, kinds, firsts, arena, offset, ranks, scaling, scales, tokens, starts, slots, 1)
    widths = _widths_of(ranks, firsts)
    for segment in range(len(slots)):
        for row in range(starts[segment], starts[segment + 1], TOKENS):
            for member in range(len(kinds)):
                if widths[segment, member]:
                    _expand(
                        y, h, x.shape[1], layer, kinds, firsts, arena, offset, ranks, tokens, slots, segment, member,
                        0, widths[segment, member], row, min(row + TOKENS, starts[segment + 1]),
                    )  # fmt: skip
