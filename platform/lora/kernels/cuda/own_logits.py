"""y[r, token] = x[r] . row of the token, for the rows of the head that r's adapter brings (triton).

And -inf for the base's tokens that the adapted model lacks. Shapes: R rows whose logits are needed, C hidden size.
"""

import torch
import triton
import triton.language as tl

from loraplex.quant.kernels.cuda.card import find_card
from loraplex.quant.kernels.cuda.guard import require

from .entry import StepTensors
from .matrix import multiply
from .own_rows import OwnRows, load_page, locate_tokens
from .tiles import COLUMNS, ROW_TOKENS, ROWS, STEP_BYTES


def put_own_logits(
    y: torch.Tensor, x: torch.Tensor, step: StepTensors, own: OwnRows, vocabularies: torch.Tensor, chunks: int,
    kind: int, vocabulary: int,
) -> None:  # fmt: skip
    """y [R, room for all tokens], changed in place, x [R, C], both contiguous; vocabularies as in PageTable;
    vocabulary: the base's; the rest as for `cuda.add_lora`."""
    require(y.is_contiguous() and x.is_contiguous(), "rows and logits must be contiguous")
    item_size = step.arena.element_size()
    # Programs share the rows of the head of a chunk's adapter: they are a few, or as many as the vocabulary.
    own_logits[find_card(y.device).processors, chunks](
        y, x, step.chunks, step.tokens, step.arena, own, vocabularies, KIND=kind, TABLE_KINDS=own.counts.shape[1],
        SIZE=x.shape[1], PITCH=y.shape[1], VOCABULARY=vocabulary, ROWS=ROWS, ROW_TOKENS=ROW_TOKENS,
        STEP=STEP_BYTES // item_size, COLUMNS=COLUMNS, ITEM_SIZE=item_size, enable_fp_fusion=True,
    )  # fmt: skip


@triton.jit
def own_logits(
    y: tl.tensor, x: tl.tensor, chunks: tl.tensor, tokens: tl.tensor, arena: tl.tensor, own: OwnRows,
    vocabularies: tl.tensor,
    KIND: tl.constexpr, TABLE_KINDS: tl.constexpr, SIZE: tl.constexpr, PITCH: tl.constexpr, VOCABULARY: tl.constexpr,
    ROWS: tl.constexpr, ROW_TOKENS: tl.constexpr, STEP: tl.constexpr, COLUMNS: tl.constexpr, ITEM_SIZE: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (programs that share an adapter's pages, chunks)."""
    program, chunk = tl.program_id(0), tl.program_id(1)
    slot = tl.load(chunks + 3 * chunk)
    if slot < 0:
        return
    place = slot * TABLE_KINDS + KIND
    lanes = tl.arange(0, ROWS)
    live = lanes < tl.load(chunks + 3 * chunk + 2)
    token = tl.load(tokens + tl.load(chunks + 3 * chunk + 1) + lanes, mask=live, other=0).to(tl.int64)
    results = y + token[:, None] * PITCH
    known = tl.load(vocabularies + slot)
    if (known > 0) & (known < VOCABULARY):
        for first in range(known + program * COLUMNS, VOCABULARY, tl.num_programs(0) * COLUMNS):
            columns = first + tl.arange(0, COLUMNS)
            nothing = tl.full((ROWS, COLUMNS), float("-inf"), tl.float32)
            tl.store(results + columns[None, :], nothing, mask=live[:, None] & (columns < VOCABULARY)[None, :])

    count, numbers = tl.load(own.counts + place), tl.arange(0, ROW_TOKENS)
    for first in range(program * ROW_TOKENS, count, tl.num_programs(0) * ROW_TOKENS):
        page = load_page(own, place, first // ROW_TOKENS, ITEM_SIZE)
        exists = first + numbers < count
        total = tl.zeros((ROWS, ROW_TOKENS), tl.float32)
        for done in range(0, SIZE, STEP):
            inputs = done + tl.arange(0, STEP)
            inside = inputs < SIZE
            row_places = arena + page + (numbers * SIZE)[None, :] + inputs[:, None]
            rows = tl.load(row_places, mask=exists[None, :] & inside[:, None], other=0.0)
            values = x + token[:, None] * SIZE + inputs[None, :]
            total = multiply(tl.load(values, mask=live[:, None] & inside[None, :], other=0.0), rows, total)
        ids = tl.load(own.tokens + locate_tokens(page, SIZE, ITEM_SIZE) + numbers, mask=exists, other=0)
        tl.store(results + ids[None, :], total, mask=live[:, None] & exists[None, :])
