"""y[token] += h[row] B over the rank pages of the row's adapter, with one rounding into y (triton)."""

import triton
import triton.language as tl

from .matrix import multiply_split, multiply_wide, pick, split_wide
from .share import count_chunks, find_module, find_pages, take_share, wait_for_previous


@triton.jit(do_not_specialize=["listed", "layer"])
def expand(
    y: tl.tensor, h: tl.tensor, chunks: tl.tensor, tokens: tl.tensor,
    arena: tl.tensor, offset: tl.tensor, rank: tl.tensor, kinds: tl.tensor, pair_rows: tl.tensor, listed: tl.tensor,
    layer: tl.tensor,
    KINDS: tl.constexpr, WIDTHS: tl.constexpr, FIRST_COLUMNS: tl.constexpr, FIRST_BLOCKS: tl.constexpr,
    INPUTS: tl.constexpr, SPLITS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr,
    PAGE: tl.constexpr, ALIGNMENT: tl.constexpr, TABLE_KINDS: tl.constexpr, TABLE_PAGES: tl.constexpr,
    LAYERS: tl.constexpr, ROOM: tl.constexpr, CHAINED: tl.constexpr, STAGES: tl.constexpr, TOGETHER: tl.constexpr,
    WIDE_RANKS: tl.constexpr, WIDE_COLUMNS: tl.constexpr, WIDE_STAGES: tl.constexpr, WIDE_TOGETHER: tl.constexpr,
    SLOTS: tl.constexpr, PER_TOKEN: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (programs): they share out the blocks of columns of all members of all chunks that there are of `listed`; h
    is as shrink leaves it.

    FIRST_COLUMNS and FIRST_BLOCKS have one entry a member and the total. All that does not depend on shrink is read
    before it ends, and each program waits for that end, so that this launch never ends before shrink.
    """
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
    MEMBERS: tl.constexpr = len(WIDTHS)
    BLOCKS: tl.constexpr = FIRST_BLOCKS[MEMBERS]
    # With 8 of 16 the assembler puts two numbers on the stack (sm_100, triton 3.9).
    MANY_TOGETHER: tl.constexpr = 12 if SPLITS > 12 else TOGETHER
    item, end = take_share(count_chunks(chunks, listed) * BLOCKS)
    while item < end:
        chunk, block = item // BLOCKS, item % BLOCKS
        member = 0
        for index in tl.static_range(1, MEMBERS):
            member += (block >= FIRST_BLOCKS[index]).to(tl.int32)
        width = pick(WIDTHS, member)
        blocks = tl.minimum(end - item, pick(FIRST_BLOCKS, member + 1) - block)
        slot, kind = find_module(chunks, chunk, kinds, member, KINDS, MEMBERS, SLOTS)
        module = slot * TABLE_KINDS + kind
        lanes = tl.arange(0, ROWS)
        rows = tl.load(chunks + 3 * chunk + 1) + lanes
        live = lanes < tl.load(chunks + 3 * chunk + 2)
        own = tl.load(rank + module * LAYERS + layer)
        token = tl.load(tokens + rows, mask=live, other=0)
        if PER_TOKEN:
            token = tl.load(pair_rows + token, mask=live, other=0)
        token = token.to(tl.int64)
        y_rows = y + token[:, None] * FIRST_COLUMNS[MEMBERS] + pick(FIRST_COLUMNS, member)
        h_rows = h + (rows * MEMBERS + member) * (SPLITS * ROOM)
        weights = arena + (layer * (INPUTS + width) + INPUTS) * PAGE
        pages = offset + module * TABLE_PAGES
        first_column = (block - pick(FIRST_BLOCKS, member)) * COLUMNS

        ranks, wide_ranks, columns = tl.arange(0, RANKS), tl.arange(0, WIDE_RANKS), first_column + tl.arange(0, COLUMNS)
        # Of the whole table, so that it need not wait for how many ranks the adapter has.
        start = find_pages(pages, ranks, TABLE_PAGES * PAGE, PAGE, ALIGNMENT) + ranks % PAGE * width
        wide = find_pages(pages, wide_ranks, TABLE_PAGES * PAGE, PAGE, ALIGNMENT) + wide_ranks % PAGE * width
        if own <= RANKS:
            add_tile(
                y_rows, h_rows, weights, start, first_column, blocks * COLUMNS, own, width, live,
                SPLITS, TOGETHER, ROOM, COLUMNS, CHAINED, STAGES,
            )  # fmt: skip
        elif own <= WIDE_RANKS:
            add_tile(
                y_rows, h_rows, weights, wide, first_column, blocks * COLUMNS, own, width, live,
                SPLITS, WIDE_TOGETHER, ROOM, WIDE_COLUMNS, CHAINED, WIDE_STAGES,
            )  # fmt: skip
        for index in tl.range(0, tl.where(own > WIDE_RANKS, blocks, 0), num_stages=1):
            places = columns + index * COLUMNS
            inside = places < width
            wanted = live[:, None] & inside[None, :]
            total = tl.load(y_rows + places[None, :], mask=wanted, other=0.0).to(tl.float32)
            b = load_ranks(weights, pages, 0, own, width, places, RANKS, PAGE, ALIGNMENT)
            wait_for_previous(CHAINED)
            for first in tl.range(0, own, RANKS, num_stages=1):
                following = load_ranks(weights, pages, first + RANKS, own, width, places, RANKS, PAGE, ALIGNMENT)
                summed = sum_splits(h_rows, first + ranks, own, live, SPLITS, MANY_TOGETHER, ROOM)
                total = multiply_wide(summed, b, total)
                b = following
            tl.store(y_rows + places[None, :], total.to(y.dtype.element_ty), mask=wanted)
        item += blocks
    wait_for_previous(CHAINED)


@triton.jit
def add_tile(
    y_rows: tl.tensor, h_rows: tl.tensor, weights: tl.tensor, start: tl.tensor, first: tl.tensor, count: tl.tensor,
    own: tl.tensor, width: tl.tensor, live: tl.tensor,
    SPLITS: tl.constexpr, TOGETHER: tl.constexpr, ROOM: tl.constexpr, COLUMNS: tl.constexpr, CHAINED: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Up to `count` columns of one member of a chunk, from `first` on, for an adapter of no more ranks than `start` has
    places. The sum of their splits stays, and loads of columns to come are on their way."""
    ranks, columns = tl.arange(0, start.shape[0]), first + tl.arange(0, COLUMNS)
    nothing = tl.zeros((live.shape[0], start.shape[0]), tl.float32)
    high, low = split_wide(nothing, weights.dtype.element_ty)
    for begin in tl.range(0, tl.where(own > 0, count, 0), COLUMNS, num_stages=STAGES):
        places = columns + begin
        inside = places < width
        wanted = live[:, None] & inside[None, :]
        b_wanted = (ranks < own)[:, None] & inside[None, :]
        b = tl.load(weights + start[:, None] + places[None, :], mask=b_wanted, other=0.0)
        values = tl.load(y_rows + places[None, :], mask=wanted, other=0.0).to(tl.float32)
        if begin == 0:
            wait_for_previous(CHAINED)
            summed = sum_splits(h_rows, ranks, own, live, SPLITS, TOGETHER, ROOM)
            high, low = split_wide(summed, weights.dtype.element_ty)
        total = multiply_split(high, low, b, values)
        tl.store(y_rows + places[None, :], total.to(y_rows.dtype.element_ty), mask=wanted)


@triton.jit
def sum_splits(
    h_rows: tl.tensor, ranks: tl.tensor, own: tl.tensor, live: tl.tensor,
    SPLITS: tl.constexpr, TOGETHER: tl.constexpr, ROOM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """[ROWS, RANKS], always in the same order; zero from `own` on, where nobody has written. TOGETHER are read at a
    time."""
    wanted = live[:, None] & (ranks < own)[None, :]
    total = tl.zeros((live.shape[0], ranks.shape[0]), tl.float32)
    for first in tl.range(0, SPLITS, TOGETHER, num_stages=1):
        for split in tl.static_range(TOGETHER):
            places = h_rows[:, None] + ((first + split) * ROOM + ranks)[None, :]
            total += tl.load(places, mask=wanted & (first + split < SPLITS), other=0.0)
    return total


@triton.jit
def load_ranks(
    weights: tl.tensor, pages: tl.tensor, first: tl.tensor, own: tl.tensor, width: tl.tensor, columns: tl.tensor,
    RANKS: tl.constexpr, PAGE: tl.constexpr, ALIGNMENT: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Ranks from `first` of B, zero from `own` on. weights: where a page that began at 0 would have this layer's B."""
    ranks = first + tl.arange(0, RANKS)
    start = find_pages(pages, ranks, own, PAGE, ALIGNMENT) + ranks % PAGE * width
    inside = (ranks < own)[:, None] & (columns < width)[None, :]
    return tl.load(weights + start[:, None] + columns[None, :], mask=inside, other=0.0)
