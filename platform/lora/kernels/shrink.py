"""h[row] = scale * x[token] A^T over the rank pages of the row's adapter, in fp32, in splits of the inputs (triton).

h is [rows, members, splits, ROOM]: each program writes its own part, zeros to the end of the last tile of ranks, and
expand adds the splits up in one fixed order.
"""

import triton
import triton.language as tl

from .matrix import multiply, pick


@triton.jit(do_not_specialize=["layer"])
def shrink(
    h: tl.tensor, x: tl.tensor, chunks: tl.tensor, tokens: tl.tensor, scales: tl.tensor,
    arena: tl.tensor, offset: tl.tensor, rank: tl.tensor, scaling: tl.tensor, layer: tl.tensor,
    KINDS: tl.constexpr, WIDTHS: tl.constexpr, INPUTS: tl.constexpr, SPLIT: tl.constexpr, STEP: tl.constexpr,
    ROWS: tl.constexpr, RANKS: tl.constexpr, PAGE: tl.constexpr, ALIGNMENT: tl.constexpr, TABLE_KINDS: tl.constexpr,
    TABLE_PAGES: tl.constexpr, LAYERS: tl.constexpr, ROOM: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (splits, members, chunks), the latter a static bound: chunks past the end have slot -1."""
    split, member, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
    slot = tl.load(chunks + 3 * chunk)
    if slot < 0:
        return
    kind, width = pick(KINDS, member), pick(WIDTHS, member)
    module = slot * TABLE_KINDS + kind
    own = tl.load(rank + module * LAYERS + layer)
    lanes = tl.arange(0, ROWS)
    live = lanes < tl.load(chunks + 3 * chunk + 2)
    rows = tl.load(chunks + 3 * chunk + 1) + lanes
    token = tl.load(tokens + rows, mask=live, other=0).to(tl.int64)
    factor = tl.load(scales + rows, mask=live, other=0.0) * tl.load(scaling + module * LAYERS + layer)
    h_rows = ((rows * len(KINDS) + member) * tl.num_programs(0) + split) * ROOM

    for first in range(0, own, RANKS):
        ranks = first + tl.arange(0, RANKS)
        owned = ranks < own
        page = tl.load(offset + module * TABLE_PAGES + ranks // PAGE, mask=owned, other=0)
        start = tl.multiple_of(page, ALIGNMENT) + layer * PAGE * (INPUTS + width) + ranks % PAGE * INPUTS
        total = tl.zeros((ROWS, RANKS), tl.float32)
        for done in range(0, SPLIT, STEP):
            inputs = split * SPLIT + done + tl.arange(0, STEP)
            inside = inputs < INPUTS
            a = tl.load(arena + start[None, :] + inputs[:, None], mask=owned[None, :] & inside[:, None], other=0.0)
            values = x + token[:, None] * INPUTS + inputs[None, :]
            total = multiply(tl.load(values, mask=live[:, None] & inside[None, :], other=0.0), a, total)
        tl.store(h + h_rows[:, None] + ranks[None, :], total * factor[:, None], mask=live[:, None])
