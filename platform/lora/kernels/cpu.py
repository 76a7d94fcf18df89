# mypy: allow-untyped-decorators
"""y[t] += scaling * (x[t] A^T) B over rank pages, for the CPU this runs on (numba, no compiler needed).

Two sweeps: shrink, h = scale * x A^T, by (segment, kind, page); expand, y += h B, by (segment, kind, columns), or by
whoever goes through y anyway (`expand_rows`). Workers take items as they get on: ranks differ, and so does what else
the processor has to do.
numba has no 16-bit floats: uint16 stands for bfloat16 bits, int16 for float16 bits.
"""

from typing import Any, Final

import numpy as np
from numba import njit, prange

from .claim import claim, counter, shares_of
from .expand_one import expand_one
from .expand_tile import VECTORS, expand_tokens
from .shrink_page import shrink_tokens
from .vector_code import LANES, PAGE

COLUMNS: Final = 32 * LANES
"""Columns of y in one work item of expand."""
TOKENS: Final = 48
"""Most tokens of one work item; a multiple of every tile."""


@njit
def _fill_work(items: Any, starts: Any, widths: Any, step: int, first: int, last: int) -> int:
    """Fill items as far as they reach; returns how many there are."""
    count = 0
    for segment in range(first, last):
        for row in range(starts[segment], starts[segment + 1], TOKENS):
            for member in range(widths.shape[1]):
                for position in range(0, widths[segment, member], step):
                    if count < len(items):
                        items[count, 0], items[count, 1] = segment, member
                        items[count, 2], items[count, 3] = position, row
                    count += 1
    return count


@njit
def _work(starts: Any, widths: Any, step: int, first: int, last: int) -> Any:
    """Items (segment, member, position, row): each `step` of widths[segment, member], each TOKENS rows.

    Of the segments from `first` up to `last`.
    """
    items = np.empty((_fill_work(np.empty((0, 4), np.int64), starts, widths, step, first, last), 4), np.int64)
    _fill_work(items, starts, widths, step, first, last)
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
    x: Any, layer: int, kinds: Any, firsts: Any, arena: Any, offset: Any, ranks: Any, scaling: Any, scales: Any,
    tokens: Any, starts: Any, slots: Any, workers: int,
) -> Any:  # fmt: skip
    """h [len(tokens), members * most ranks], scaled; the others as in add_lora."""
    inputs, room = x.shape[1], offset.shape[2] * PAGE
    h = np.empty((len(tokens), len(kinds) * room), np.float32)
    # The first share of each worker is its own: it takes the next one while it works, to bring its weights near.
    items, taken = _work(starts, ranks, PAGE, 0, len(slots)), counter(workers)
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
def _expand(
    y: Any, h: Any, inputs: int, layer: int, kinds: Any, firsts: Any, arena: Any, offset: Any, ranks: Any,
    tokens: Any, slots: Any, segment: int, member: int, position: int, columns: int, row: int, end: int,
) -> None:  # fmt: skip
    """The columns from `position` on of one linear, for the sorted tokens row to end of one segment."""
    outputs, own = firsts[member + 1] - firsts[member], ranks[segment, member]
    pages = offset[slots[segment], kinds[member]]
    start = PAGE * (layer * (inputs + outputs) + inputs) + position
    h_column, y_column = member * offset.shape[2] * PAGE, firsts[member] + position
    if end - row == 1 and y.itemsize == 4:
        expand_one(arena, pages, start, outputs, own, h, row, h_column, y, tokens[row], y_column, columns)
        return
    for column in range(0, columns, VECTORS * LANES):
        expand_tokens(
            arena, pages.ctypes.data, start + column, outputs, own, tokens, h, row, end, h_column, y,
            y_column + column, min(VECTORS * LANES, columns - column),
        )  # fmt: skip


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


@njit(parallel=True, cache=True)
def add_lora(
    y: Any, x: Any, layer: int, kinds: Any, firsts: Any, arena: Any, offset: Any, rank: Any, scaling: Any,
    scales: Any, sorted_tokens: Any, starts: Any, slots: Any, rounds: Any, workers: int,
) -> None:  # fmt: skip
    """Arrays as in PageTable and LoraBatch, all contiguous. kinds [members]: index of each linear of the group;
    firsts [members + 1]: member m owns y's columns firsts[m] to firsts[m + 1]. A token stands once in each round."""
    tokens, ranks = sorted_tokens.astype(np.int64), ranks_of(rank, slots, kinds, layer)
    h = shrink(x, layer, kinds, firsts, arena, offset, ranks, scaling, scales, tokens, starts, slots, workers)
    widths = _widths_of(ranks, firsts)
    for number in range(len(rounds) - 1):
        items = _work(starts, widths, COLUMNS, rounds[number], rounds[number + 1])
        taken, shares = counter(workers), shares_of(len(items), workers)
        for worker in prange(workers):
            share = np.int64(worker)
            while share < len(shares) - 1:
                for index in range(shares[share], shares[share + 1]):
                    segment, member, position, row = items[index, 0], items[index, 1], items[index, 2], items[index, 3]
                    _expand(
                        y, h, x.shape[1], layer, kinds, firsts, arena, offset, ranks, tokens, slots, segment, member,
                        position, min(COLUMNS, widths[segment, member] - position),
                        row, min(row + TOKENS, starts[segment + 1]),
                    )  # fmt: skip
                share = claim(taken)
