"""Norms and embeddings as adapters have them, for CUDA, against the CPU's, in triton's interpreter:
test_triton_interpreted.py runs this by itself."""

import pytest
import torch

from loraplex.lora.batch import KINDS, Extras, LoraBatch, PageTable
from loraplex.lora.kernels.own_norm import norm_with_own
from loraplex.lora.manifest import EMBEDDING
from loraplex.lora.norms import replace_norms
from loraplex.lora.rounds import adapt_embeddings
from loraplex.lora.step_buffers import StepBuffers
from loraplex.lora.vocabulary import embed
from tests.triton_interpreter import poisoned_memory, rounding

__all__ = ["poisoned_memory", "rounding"]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2**-9, torch.bfloat16: 2**-6}
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
SLOTS, VOCABULARY = 4, 41


def make_table(size: int, layers: int, dtype: torch.dtype) -> PageTable:
    """Slots 1 and 3 have pages of `size` wherever they are put."""
    shape = (SLOTS, len(KINDS))
    return PageTable(
        arena=torch.randn(1 << 15).to(dtype),
        offset=torch.zeros(*shape, 4, dtype=torch.int64),
        rank=torch.zeros(*shape, layers, dtype=torch.int32),
        scaling=torch.zeros(*shape, layers),
        shapes={EMBEDDING: (VOCABULARY, size)},
    )


@every_dtype
@pytest.mark.parametrize("size", [16, 37, 600])
def test_norms(size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    table, kind = make_table(size, 2, torch.float32), "post_attention_layernorm"
    table.vectors[1, KINDS.index(kind)], table.vectors[3, KINDS.index(kind)] = 128, 4096
    table.extras = {slot: Extras(frozenset({kind}), {}, VOCABULARY) for slot in (1, 3)}
    slots = torch.tensor([1, -1, 3, 2, 1], dtype=torch.int32)
    batch = LoraBatch.build(table, slots, torch.ones(5))
    normed, residual = torch.randn(4, size).to(dtype), torch.randn(4, size).to(dtype)
    for tokens in (None, torch.tensor([4, 1, 2, 3])):
        rows = torch.arange(4) if tokens is None else tokens
        expected = replace_norms(normed.clone(), residual, rows, batch, 1, kind, 1e-5)
        found = normed.clone()
        norm_with_own(found, residual, tokens, slots, table.floats, table.vectors, 1, KINDS.index(kind), 1e-5)
        torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        assert torch.equal(found[slots[rows] < 1], normed[slots[rows] < 1])
        assert not torch.equal(found, normed)


@every_dtype
@pytest.mark.parametrize("size", [16, 37, 300])
def test_embeddings(size: int, dtype: torch.dtype) -> None:
    """Ranks that end within a page, a gain, and adapters that are summed."""
    torch.manual_seed(0)
    table, kind = make_table(size, 1, dtype), KINDS.index(EMBEDDING)
    table.offset[1, kind, :2], table.rank[1, kind], table.scaling[1, kind] = torch.tensor([0, 4096]), 11, 0.25
    table.offset[3, kind, 0], table.rank[3, kind], table.scaling[3, kind] = 8192, 3, -0.5
    table.vectors[3, kind], table.floats[6000:6600] = 6000, torch.randn(600)
    table.extras = {slot: Extras(frozenset({EMBEDDING}), {}, VOCABULARY) for slot in (1, 3)}
    for page in (4096, 8192):
        table.arena[page + 3 * VOCABULARY : page + 8 * VOCABULARY] = 0
    ids, embedding = torch.tensor([0, 40, 7, 40, 5, 9]), torch.randn(VOCABULARY, size).to(dtype)
    slots = torch.tensor([[1, -1], [1, 3], [-1, -1], [3, -1], [2, -1], [2, 1]], dtype=torch.int32)
    for part, places in ((slots[:, :1].contiguous(), 1), (slots.where(slots != 3, 2), 2)):
        # An adapter with a gain is never scaled.
        batch = LoraBatch.build(table, part, (torch.rand(6, places) + 0.5).where(part != 3, 1.0))
        assert batch is not None
        rounds = []
        for single in batch.rounds():
            rounds.append(StepBuffers(table, len(ids)))
            rounds[-1].update(single)
        x = embedding[ids]
        adapt_embeddings(x, ids, rounds, table)
        embedded, expected = embed(ids, embedding, batch), embedding[ids]
        assert embedded is not None
        expected[embedded.tokens] = embedded.values.to(dtype)
        torch.testing.assert_close(x, expected, atol=20 * TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        assert torch.equal(x[2], embedding[7]) and not torch.equal(x[0], embedding[0])
