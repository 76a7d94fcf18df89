"""y[token] = gain * y[token] + scale * shift where the token's adapter has vectors over a linear's outputs (triton).

The CPU's twin is vectors.py.
"""

import triton
import triton.language as tl

from .matrix import pick
from .share import find_module


@triton.jit(do_not_specialize=["layer"])
def scale(
    y: tl.tensor, chunks: tl.tensor, tokens: tl.tensor, scales: tl.tensor, floats: tl.tensor, vectors: tl.tensor,
    kinds: tl.tensor, pair_rows: tl.tensor, layer: tl.tensor,
    KINDS: tl.constexpr, WIDTHS: tl.constexpr, FIRST_COLUMNS: tl.constexpr, FIRST_BLOCKS: tl.constexpr,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, TABLE_KINDS: tl.constexpr,
    SLOTS: tl.constexpr, PER_TOKEN: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (blocks of columns of all members, chunks), all as for expand; floats and vectors as in PageTable."""
    block, chunk = tl.program_id(0), tl.program_id(1)
    member = 0
    for index in tl.static_range(1, len(WIDTHS)):
        member += (block >= FIRST_BLOCKS[index]).to(tl.int32)
    width = pick(WIDTHS, member)
    slot, kind = find_module(chunks, chunk, kinds, member, KINDS, len(WIDTHS), SLOTS)
    page = tl.load(vectors + slot * TABLE_KINDS + kind, mask=slot >= 0, other=-1)
    if page < 0:
        return
    lanes = tl.arange(0, ROWS)
    live = lanes < tl.load(chunks + 3 * chunk + 2)
    rows = tl.load(chunks + 3 * chunk + 1) + lanes
    token = tl.load(tokens + rows, mask=live, other=0)
    if PER_TOKEN:
        factors = tl.load(scales + token // PER_TOKEN, mask=live, other=0.0)
        token = tl.load(pair_rows + token, mask=live, other=0)
    else:
        factors = tl.load(scales + rows, mask=live, other=0.0)
    token = token.to(tl.int64)
    columns = (block - pick(FIRST_BLOCKS, member)) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    places = y + token[:, None] * FIRST_COLUMNS[len(WIDTHS)] + (pick(FIRST_COLUMNS, member) + columns)[None, :]
    mask = live[:, None] & inside[None, :]
    values = tl.load(places, mask=mask, other=0.0).to(tl.float32)
    gains = floats + page + layer * 2 * width + columns
    gain, shift = tl.load(gains, mask=inside, other=1.0), tl.load(gains + width, mask=inside, other=0.0)
    tl.store(places, (values * gain[None, :] + factors[:, None] * shift[None, :]).to(y.dtype.element_ty), mask=mask)
