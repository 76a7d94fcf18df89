"""x[t] = (own row of the token, or x[t]) + scaling * A[:, id of t]^T B for each token's own adapter of the embedding
(triton).

A page is [RANKS of A, V] and then [RANKS of B, C]. Shapes: T tokens, V tokens of the base's vocabulary, C hidden size.
"""

import torch
import triton
import triton.language as tl

from loraplex.quant.kernels.cuda.guard import require

from .entry import StepTensors
from .own_rows import OwnRows, find_row
from .tiles import ALIGNMENT_BYTES, PAGE, ROWS

COLUMNS = 256
"""Of x, that one program of one warp owns: 16 bytes a thread of 16-bit weights."""


def add_embedding(
    x: torch.Tensor, token_ids: torch.Tensor, step: StepTensors, own: OwnRows, chunks: int, kind: int, vocabulary: int
) -> None:
    """x [T, C], changed in place; token_ids [T] int64; the rest as for `cuda.add_lora`."""
    require(x.is_contiguous() and token_ids.is_contiguous(), "rows and tokens must be contiguous")
    size, (_, table_kinds, table_pages) = x.shape[1], step.offset.shape
    embed[triton.cdiv(size, COLUMNS), chunks, ROWS](
        x, token_ids, step.chunks, step.tokens, step.scales, step.arena, step.offset, step.rank, step.scaling,
        own, KIND=kind, TABLE_KINDS=table_kinds, TABLE_PAGES=table_pages, LAYERS=step.rank.shape[2], INPUTS=vocabulary,
        SIZE=size, COLUMNS=COLUMNS, RANKS=PAGE, ITEM_SIZE=step.arena.element_size(),
        ALIGNMENT=ALIGNMENT_BYTES // step.arena.element_size(), num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip


@triton.jit
def embed(
    x: tl.tensor, token_ids: tl.tensor, chunks: tl.tensor, tokens: tl.tensor, scales: tl.tensor, arena: tl.tensor,
    offset: tl.tensor, rank: tl.tensor, scaling: tl.tensor, own: OwnRows,
    KIND: tl.constexpr, TABLE_KINDS: tl.constexpr, TABLE_PAGES: tl.constexpr, LAYERS: tl.constexpr,
    INPUTS: tl.constexpr, SIZE: tl.constexpr, COLUMNS: tl.constexpr, RANKS: tl.constexpr, ITEM_SIZE: tl.constexpr,
    ALIGNMENT: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (blocks of columns, chunks, rows of a chunk)."""
    chunk, lane = tl.program_id(1), tl.program_id(2)
    slot = tl.load(chunks + 3 * chunk)
    live = (slot >= 0) & (lane < tl.load(chunks + 3 * chunk + 2))
    place = slot * TABLE_KINDS + KIND
    ranks = tl.load(rank + place * LAYERS, mask=live, other=0)
    count = tl.load(own.counts + place, mask=live, other=0)
    if (ranks == 0) & (count == 0):
        return
    row = tl.load(chunks + 3 * chunk + 1) + lane
    token = tl.load(tokens + row).to(tl.int64)
    token_id = tl.load(token_ids + token)
    known = (token_id >= 0) & (token_id < INPUTS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < SIZE
    total = tl.zeros((COLUMNS,), tl.float32)
    for index in range(ranks):
        page = arena + tl.multiple_of(tl.load(offset + place * TABLE_PAGES + index // RANKS), ALIGNMENT)
        weight = tl.load(page + (index % RANKS) * INPUTS + token_id, mask=known, other=0.0).to(tl.float32)
        b = tl.load(page + RANKS * INPUTS + (index % RANKS) * SIZE + columns, mask=inside, other=0.0)
        total += weight * b.to(tl.float32)
    factor = tl.load(scaling + place * LAYERS) * tl.load(scales + row)
    places = x + token * SIZE + columns
    values = tl.load(places, mask=inside, other=0.0).to(tl.float32)
    if count > 0:
        begin = find_row(own, place, count, token_id, SIZE, ITEM_SIZE)
        if begin >= 0:
            values = tl.load(arena + begin + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(places, (values + total * factor).to(x.dtype.element_ty), mask=inside)
