"""y[token] += h[row] B over the rank pages of the row's adapter, with one rounding into y (triton)."""

import triton
import triton.language as tl

from .matrix import multiply_wide, pick


@triton.jit(do_not_specialize=["layer"])
def expand(
    y: tl.tensor, h: tl.tensor, chunks: tl.tensor, tokens: tl.tensor,
    arena: tl.tensor, offset: tl.tensor, rank: tl.tensor, layer: tl.tensor,
    KINDS: tl.constexpr, WIDTHS: tl.constexpr, FIRST_COLUMNS: tl.constexpr, FIRST_BLOCKS: tl.constexpr,
    INPUTS: tl.constexpr, SPLITS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr,
    PAGE: tl.constexpr, ALIGNMENT: tl.constexpr, TABLE_KINDS: tl.constexpr, TABLE_PAGES: tl.constexpr,
    LAYERS: tl.constexpr, ROOM: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (blocks of columns of all members, chunks), chunks as for shrink; h is as shrink leaves it.

    FIRST_COLUMNS and FIRST_BLOCKS have one entry a member and the total. All that does not depend on shrink is read
    before it ends, and each program waits for that end, so that this launch never ends before shrink.
    """
    block, chunk = tl.program_id(0), tl.program_id(1)
    member = 0
    for index in tl.static_range(1, len(KINDS)):
        member += (block >= FIRST_BLOCKS[index]).to(tl.int32)
    kind, width = pick(KINDS, member), pick(WIDTHS, member)
    slot = tl.load(chunks + 3 * chunk)
    module = slot * TABLE_KINDS + kind
    own = tl.load(rank + module * LAYERS + layer, mask=slot >= 0, other=0)
    if own == 0:
        if CHAINED:
            tl.extra.cuda.gdc_wait()
        return
    lanes = tl.arange(0, ROWS)
    live = lanes < tl.load(chunks + 3 * chunk + 2)
    rows = tl.load(chunks + 3 * chunk + 1) + lanes
    token = tl.load(tokens + rows, mask=live, other=0).to(tl.int64)
    columns = (block - pick(FIRST_BLOCKS, member)) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    places = y + token[:, None] * FIRST_COLUMNS[len(KINDS)] + (pick(FIRST_COLUMNS, member) + columns)[None, :]
    total = tl.load(places, mask=live[:, None] & inside[None, :], other=0.0).to(tl.float32)
    weights = arena + (layer * (INPUTS + width) + INPUTS) * PAGE
    pages = offset + module * TABLE_PAGES
    b = load_ranks(weights, pages, 0, own, width, columns, RANKS, PAGE, ALIGNMENT)
    if CHAINED:
        tl.extra.cuda.gdc_wait()

    splits = tl.arange(0, triton.next_power_of_2(SPLITS))[:, None, None]
    for first in range(0, own, RANKS):
        following = load_ranks(weights, pages, first + RANKS, own, width, columns, RANKS, PAGE, ALIGNMENT)
        ranks = (rows * len(KINDS) + member)[:, None] * (SPLITS * ROOM) + (first + tl.arange(0, RANKS))[None, :]
        parts = tl.load(h + ranks[None] + splits * ROOM, mask=live[None, :, None] & (splits < SPLITS), other=0.0)
        total = multiply_wide(tl.sum(parts, 0), b, total)
        b = following
    tl.store(places, total.to(y.dtype.element_ty), mask=live[:, None] & inside[None, :])


@triton.jit
def load_ranks(
    weights: tl.tensor, pages: tl.tensor, first: tl.tensor, own: tl.tensor, width: tl.tensor, columns: tl.tensor,
    RANKS: tl.constexpr, PAGE: tl.constexpr, ALIGNMENT: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Ranks from `first` of B, zero from `own` on. weights: where a page that began at 0 would have this layer's B."""
    ranks = first + tl.arange(0, RANKS)
    owned = ranks < own
    start = tl.multiple_of(tl.load(pages + ranks // PAGE, mask=owned, other=0), ALIGNMENT) + ranks % PAGE * width
    inside = owned[:, None] & (columns < width)[None, :]
    return tl.load(weights + start[:, None] + columns[None, :], mask=inside, other=0.0)
