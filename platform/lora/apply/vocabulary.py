"""What adapters change at the two ends of a model: the embeddings that go in, the logits that come out.

Shapes: T tokens of the step, R rows whose logits are needed, V tokens of the base's vocabulary, C hidden size.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from ..files.manifest import EMBEDDING, HEAD
from ..kernels.rows import multiply_rows
from .apply import add_lora, as_bits
from .batch import RANKS_PER_PAGE, TOKENS_PER_PAGE, LoraBatch, PageTable, RowPages


@dataclass(frozen=True, slots=True)
class Embedded:
    """Embeddings of the tokens whose adapters change them."""

    tokens: torch.Tensor
    """[n] int64, which of the T"""
    values: torch.Tensor
    """[n, C] float32"""


def embed(token_ids: torch.Tensor, embedding: torch.Tensor, batch: LoraBatch) -> Embedded | None:
    """token_ids [T], those that only an adapter knows among them; embedding [V, C]. None: no adapter changes any."""
    if EMBEDDING not in batch.changed:
        return None
    changing = [(slot, part) for slot, part in batch.segments() if _changes_embedding(batch.table, slot)]
    tokens = torch.from_numpy(np.unique(torch.cat([batch.sorted_tokens[part] for _, part in changing]).numpy())).long()
    places = torch.full((len(token_ids),), -1, dtype=torch.int64)
    places[tokens] = torch.arange(len(tokens))
    values = F.embedding(token_ids[tokens].clamp(max=len(embedding) - 1), embedding).float()
    for slot, part in changing:
        members = batch.sorted_tokens[part].long()
        _embed_with(batch.table, slot, token_ids[members], places[members], batch.scales[part], values)
    return Embedded(tokens, values)


def adapt_logits(
    logits: torch.Tensor, hidden: torch.Tensor, rows: torch.Tensor, batch: LoraBatch | None
) -> torch.Tensor:
    """logits [R, V] float32 of the base for hidden [R, C], the tokens `rows` [R] -> as the rows' adapters have them.

    As wide as the largest vocabulary of the step; -inf where a row's model has no such token. May work in place.
    """
    if batch is None or not len(rows) or HEAD not in batch.changed:
        return logits
    of_rows = LoraBatch.build(batch.table, batch.token_slot[rows], batch.token_scale[rows])
    if of_rows is None or HEAD not in of_rows.changed:
        return logits
    own = [_own_logits(hidden, of_rows, slot, part) for slot, part in of_rows.segments()]
    base_size = logits.shape[1]
    for members, tokens, values in own:
        known = tokens < base_size
        logits[members[:, None], tokens[known]] = values[:, known]
    add_lora(logits, hidden, of_rows, 0, (HEAD,))
    return _fit_vocabularies(logits, of_rows, own)


def compile_kernels(table: PageTable, dtype: torch.dtype) -> None:
    """Run once, on nothing, what adapters of the head will run on hidden states of `dtype`."""
    size, vocab_size = table.shapes[HEAD]
    hidden, nothing = torch.zeros(1, size, dtype=dtype), torch.empty(0, dtype=torch.int64)
    batch = LoraBatch.build(table, torch.zeros(1, dtype=torch.int32), torch.ones(1))
    assert batch is not None
    add_lora(torch.zeros(1, vocab_size), hidden, batch, 0, (HEAD,))
    _multiply(table, RowPages(nothing, nothing), hidden.float())


def _changes_embedding(table: PageTable, slot: int) -> bool:
    return slot in table.extras and EMBEDDING in table.extras[slot].kinds


def _embed_with(
    table: PageTable, slot: int, ids: torch.Tensor, places: torch.Tensor, scales: torch.Tensor, values: torch.Tensor
) -> None:
    """Change values[places], the embeddings of `ids`, as the adapter does."""
    rows = table.extras[slot].rows.get(EMBEDDING)
    if rows is not None:
        found = torch.searchsorted(rows.tokens, ids).clamp(max=len(rows.tokens) - 1)
        own = rows.tokens[found] == ids
        values[places[own]] = _row_values(table, rows, found[own])
    values[places] += _embedding_delta(table, slot, ids) * scales[:, None]
    page = int(table.vectors[slot, table.row(EMBEDDING)])
    if page >= 0:
        gain, shift = table.floats[page : page + 2 * values.shape[1]].view(2, -1)
        values[places] = values[places] * gain + shift


def _row_values(table: PageTable, rows: RowPages, places: torch.Tensor) -> torch.Tensor:
    """[n, C] float32, the rows at these places of `rows`."""
    size = table.shapes[EMBEDDING][1]
    starts = rows.offsets[places // TOKENS_PER_PAGE] + places % TOKENS_PER_PAGE * size
    return table.arena[starts[:, None] + torch.arange(size)].float()


def _embedding_delta(table: PageTable, slot: int, ids: torch.Tensor) -> torch.Tensor:
    """scaling * (A^T)[ids] B as [n, C]."""
    kind, (inputs, outputs) = table.row(EMBEDDING), table.shapes[EMBEDDING]
    delta = torch.zeros(len(ids), outputs, device=ids.device)
    for page in range(-(-int(table.rank[slot, kind, 0]) // RANKS_PER_PAGE)):
        start = int(table.offset[slot, kind, page])
        weights = table.arena[start : start + RANKS_PER_PAGE * (inputs + outputs)]
        a, b = weights[: RANKS_PER_PAGE * inputs], weights[RANKS_PER_PAGE * inputs :]
        delta += a.view(RANKS_PER_PAGE, inputs)[:, ids].float().T @ b.view(RANKS_PER_PAGE, outputs).float()
    return delta * table.scaling[slot, kind, 0]


Own = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Rows [n], tokens [m], and their logits [n, m] that come of an adapter's own rows of the head."""


def _own_logits(hidden: torch.Tensor, batch: LoraBatch, slot: int, part: slice) -> Own:
    members, extras = batch.sorted_tokens[part].long(), batch.table.extras.get(slot)
    rows = extras.rows.get(HEAD) if extras else None
    if rows is None:
        return members, torch.empty(0, dtype=torch.int64), torch.empty(len(members), 0)
    return members, rows.tokens, _multiply(batch.table, rows, hidden[members].float())


def _multiply(table: PageTable, rows: RowPages, x: torch.Tensor) -> torch.Tensor:
    """x [n, C] float32 -> [n, rows]."""
    y = torch.empty(len(x), len(rows.offsets) * TOKENS_PER_PAGE)
    multiply_rows(as_bits(table.arena), rows.offsets.numpy(), TOKENS_PER_PAGE, x.contiguous().numpy(), y.numpy())
    return y[:, : len(rows.tokens)]


def _fit_vocabularies(logits: torch.Tensor, batch: LoraBatch, own: list[Own]) -> torch.Tensor:
    """PageAllocation for tokens that the base lacks, and none for those that an adapted model lacks."""
    extras, base_size = batch.table.extras, logits.shape[1]
    sizes = [extras[slot].vocab_size if slot in extras else base_size for slot, _ in batch.segments()]
    if max(sizes) > base_size:
        logits = F.pad(logits, (0, max(sizes) - base_size), value=float("-inf"))
    for (members, tokens, values), size in zip(own, sizes, strict=True):
        added = tokens >= base_size
        logits[members[:, None], tokens[added]] = values[:, added]
        if size < base_size:
            logits[members, size:base_size] = float("-inf")
    return logits
