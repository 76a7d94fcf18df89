"""add_rounds: the adapters of a step that is on a CUDA device, round by round."""

from collections.abc import Sequence

import torch

from ..files.manifest import EMBEDDING, HEAD
from ..kernels.cuda import entry as cuda
from ..kernels.cuda.own_embedding import add_embedding
from ..kernels.cuda.own_logits import put_own_logits
from ..kernels.cuda.own_rows import OwnRows
from .batch import PageTable
from .step_buffers import StepLists


def add_rounds(
    y: torch.Tensor,
    x: torch.Tensor,
    rounds: Sequence[StepLists],
    table: PageTable,
    layer: int,
    kinds: tuple[str, ...],
    has_vectors: bool = False,
) -> None:
    """As `apply.add_lora`; `rounds` hold what acts on the T tokens of y [T, sum of the kinds' out_features or more] and
    x [T, in], contiguous. `has_vectors`: whether any adapter of them has vectors.

    Captured launches replay right with any other step of up to T tokens, as many rounds and the same `has_vectors`.
    """
    assert y.is_contiguous()
    x, (rows, widths), ordinal = x.contiguous(), table.group(kinds), table.ordinal(kinds[0], layer)
    for lists in rounds:
        cuda.add_lora(y, x, lists.tensors, lists.bound_chunks(len(x)), ordinal, rows, widths)
    for lists in rounds if has_vectors else ():
        chunks = lists.bound_chunks(len(x))
        cuda.scale_outputs(y, lists.tensors, table.floats, table.vectors, chunks, ordinal, rows, widths)


def adapt_embeddings(x: torch.Tensor, token_ids: torch.Tensor, rounds: Sequence[StepLists], table: PageTable) -> None:
    """x [T, C], the base's embeddings of token_ids [T], in place as the adapters of `rounds` have them."""
    kind, (vocabulary, size) = table.row(EMBEDDING), table.shapes[EMBEDDING]
    for lists in rounds:
        add_embedding(x, token_ids, lists.tensors, _own_rows(table), lists.bound_chunks(len(x)), kind, vocabulary)
    for lists in rounds:
        chunks = lists.bound_chunks(len(x))
        cuda.scale_outputs(x, lists.tensors, table.floats, table.vectors, chunks, 0, (kind,), (size,))


def adapt_own_logits(logits: torch.Tensor, hidden: torch.Tensor, rounds: Sequence[StepLists], table: PageTable) -> None:
    """logits [R, W], the base's of hidden [R, C] and -inf for the tokens that it lacks, in place as they are with the
    rows of the head and the vocabularies of the adapters of `rounds`, before all else that they add. No adapter of
    them knows more than W tokens."""
    kind, (_, vocabulary) = table.row(HEAD), table.shapes[HEAD]
    for lists in rounds:
        chunks = lists.bound_chunks(len(hidden))
        put_own_logits(
            logits, hidden.contiguous(), lists.tensors, _own_rows(table), table.vocabularies, chunks, kind, vocabulary
        )


def _own_rows(table: PageTable) -> OwnRows:
    return OwnRows(table.row_index, table.row_counts, table.read_as(torch.int64), table.read_as(torch.int32))
