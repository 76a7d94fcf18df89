"""h[row] = scale * x[token] A^T over the rank pages of the row's adapter, in fp32, in splits of the inputs (triton).

h is [rows, members, splits, ROOM]: each split of a chunk is written by one program, zeros to the end of the last tile
of ranks, and expand adds the splits up in one fixed order.
"""

import triton
import triton.language as tl

from loraplex.quant.kernels.cuda.chain import prefetch_rows

from .matrix import multiply, pick
from .share import count_chunks, find_module, find_pages, take_share, wait_for_previous


@triton.jit(do_not_specialize=["listed", "layer"])
def shrink(
    h: tl.tensor, x: tl.tensor, chunks: tl.tensor, tokens: tl.tensor, scales: tl.tensor,
    arena: tl.tensor, offset: tl.tensor, rank: tl.tensor, scaling: tl.tensor, kinds: tl.tensor, pair_rows: tl.tensor,
    listed: tl.tensor, layer: tl.tensor,
    KINDS: tl.constexpr, WIDTHS: tl.constexpr, INPUTS: tl.constexpr, SPLIT: tl.constexpr, SPLITS: tl.constexpr,
    STEP: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, PAGE: tl.constexpr, ALIGNMENT: tl.constexpr,
    TABLE_KINDS: tl.constexpr, TABLE_PAGES: tl.constexpr, LAYERS: tl.constexpr, ROOM: tl.constexpr,
    CHAINED: tl.constexpr, STAGES: tl.constexpr, SLOTS: tl.constexpr, PER_TOKEN: tl.constexpr, BY_TOKEN: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (programs): they share out the splits of all members of all chunks that there are of `listed`.

    With PER_TOKEN, rows are of tokens' experts: see experts.py.

    What a program reads of the adapters is on its way before the kernel that wrote x ends. Each program waits for that
    end, so that this launch never ends before it, and before it lets expand begin, which reads y at once.
    """
    MEMBERS: tl.constexpr = len(WIDTHS)
    STEPS: tl.constexpr = SPLIT // STEP
    item, end = take_share(count_chunks(chunks, listed) * (MEMBERS * SPLITS))
    while item < end:
        chunk, member, split = item // (MEMBERS * SPLITS), item // SPLITS % MEMBERS, item % SPLITS
        splits = tl.minimum(end - item, SPLITS - split)
        width = pick(WIDTHS, member)
        slot, kind = find_module(chunks, chunk, kinds, member, KINDS, MEMBERS, SLOTS)
        module = slot * TABLE_KINDS + kind
        lanes = tl.arange(0, ROWS)
        rows = tl.load(chunks + 3 * chunk + 1) + lanes
        live = lanes < tl.load(chunks + 3 * chunk + 2)
        own = tl.load(rank + module * LAYERS + layer)
        token = tl.load(tokens + rows, mask=live, other=0)
        if PER_TOKEN:
            factor = tl.load(scales + token // PER_TOKEN, mask=live, other=0.0)
            token = token // PER_TOKEN if BY_TOKEN else tl.load(pair_rows + token, mask=live, other=0)
        else:
            factor = tl.load(scales + rows, mask=live, other=0.0)
        factor *= tl.load(scaling + module * LAYERS + layer)
        token = token.to(tl.int64)
        h_rows = ((rows * MEMBERS + member) * SPLITS + split) * ROOM
        pages = offset + module * TABLE_PAGES
        weights = arena + layer * PAGE * (INPUTS + width)
        inputs = split * SPLIT + tl.arange(0, STEP)
        x_rows = x + token[:, None] * INPUTS

        # Of the whole table, so that it need not wait for how many ranks the adapter has.
        ranks = tl.arange(0, RANKS)
        page = find_pages(pages, ranks, TABLE_PAGES * PAGE, PAGE, ALIGNMENT)
        if CHAINED:
            left = tl.minimum(splits * SPLIT, INPUTS - split * SPLIT)
            prefetch_rows(weights, page + ranks % PAGE * INPUTS + split * SPLIT, ranks < own, left)
            wait_for_previous(CHAINED)
            tl.extra.cuda.gdc_launch_dependents()
        for first in range(0, own, RANKS):
            ranks = first + tl.arange(0, RANKS)
            start = page + ranks % PAGE * INPUTS
            total = tl.zeros((ROWS, RANKS), tl.float32)
            for step in tl.range(0, splits * STEPS, num_stages=STAGES):
                places = inputs + step * STEP
                inside = places < INPUTS
                wanted = (ranks < own)[None, :] & inside[:, None]
                a = tl.load(weights + start[None, :] + places[:, None], mask=wanted, other=0.0)
                values = tl.load(x_rows + places[None, :], mask=live[:, None] & inside[None, :], other=0.0)
                total = multiply(values, a, total)
                if step % STEPS == STEPS - 1:
                    parts = h + h_rows[:, None] + (step // STEPS * ROOM + ranks)[None, :]
                    tl.store(parts, total * factor[:, None], mask=live[:, None])
                    total = tl.zeros((ROWS, RANKS), tl.float32)
            page = find_pages(pages, ranks + RANKS, own, PAGE, ALIGNMENT)
        item += splits
    wait_for_previous(CHAINED)
