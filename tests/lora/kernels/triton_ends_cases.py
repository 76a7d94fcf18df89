"""Norms and embeddings as adapters have them, for CUDA, against the CPU's, in triton's interpreter:
test_triton_interpreted.py runs this by itself."""

import numpy as np
import pytest
import torch

from loraplex.lora.apply import vocabulary
from loraplex.lora.apply.apply import lora_reference
from loraplex.lora.apply.batch import RANKS_PER_PAGE, TOKENS_PER_PAGE, Extras, LoraBatch, PageTable, RowPages
from loraplex.lora.apply.norms import replace_norms_reference
from loraplex.lora.apply.rounds import adapt_embeddings, adapt_own_logits, add_rounds
from loraplex.lora.apply.step_buffers import StepBuffers
from loraplex.lora.apply.vocabulary import adapt_logits, embed
from loraplex.lora.files.manifest import EMBEDDING, HEAD
from loraplex.lora.kernels.cuda import tiles
from loraplex.lora.kernels.cuda.own_norm import norm_with_own
from loraplex.lora.residency.page_copier import bits_of
from loraplex.lora.residency.row_pages import page_bytes, write_tokens
from tests.cards import use_processors
from tests.lora.signatures import KINDS, row_shapes
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

__all__ = ["one_patch_a_module", "poisoned_memory", "rounding"]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2**-9, torch.bfloat16: 2**-6}
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
SLOTS, VOCABULARY = 4, 41


def make_table(size: int, layers: int, dtype: torch.dtype) -> PageTable:
    """Slots 1 and 3 have pages of `size` wherever they are put."""
    shape = (SLOTS, len(KINDS))
    return PageTable(
        arena=torch.randn(1 << 16).to(dtype),
        offset=torch.zeros(*shape, 4, dtype=torch.int64),
        rank=torch.zeros(*shape, layers, dtype=torch.int32),
        scaling=torch.zeros(*shape, layers),
        shapes=row_shapes({EMBEDDING: (VOCABULARY, size), HEAD: (size, VOCABULARY)}),
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
        expected = replace_norms_reference(normed.clone(), residual, rows, batch, 1, kind, 1e-5)
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


def give_rows(table: PageTable, slot: int, kind: str, tokens: list[int], index: int) -> RowPages:
    """Rows of these tokens, in pages of random numbers down from the end of what other slots have; `index`: where the
    list of the pages goes, in numbers of 64 bits."""
    size, item_size = table.shapes[EMBEDDING][1], table.arena.element_size()
    length = -(-page_bytes(size, item_size) // 128) * 128 // item_size
    count = -(-len(tokens) // TOKENS_PER_PAGE)
    last = len(table.arena) - length * int((-(-table.row_counts // TOKENS_PER_PAGE)).sum())
    offsets = [last - length * (page + 1) for page in range(count)]
    arena = bits_of(table.arena)
    write_tokens(
        [arena[begin : begin + page_bytes(size, item_size) // item_size] for begin in offsets], np.array(tokens)
    )
    place = slot, KINDS.index(kind)
    table.read_as(torch.int64)[index : index + count] = torch.tensor(offsets)
    table.row_index[place], table.row_counts[place] = index, len(tokens)
    return RowPages(torch.tensor(tokens), torch.tensor(offsets))


def make_rounds(table: PageTable, batch: LoraBatch, tokens: int) -> list[StepBuffers]:
    found = [StepBuffers(table, tokens) for _ in batch.rounds()]
    for lists, single in zip(found, batch.rounds(), strict=True):
        lists.update(single)
    return found


def test_numbers_of_the_pages_are_those_of_the_kernels() -> None:
    assert (tiles.PAGE, tiles.ROW_TOKENS) == (RANKS_PER_PAGE, TOKENS_PER_PAGE)


@every_dtype
def test_embeddings_that_adapters_bring(dtype: torch.dtype) -> None:
    """Of a few tokens, of nearly all in several pages beside ranks, and of tokens that the base lacks."""
    torch.manual_seed(0)
    table, kind = make_table(24, 1, dtype), KINDS.index(EMBEDDING)
    table.offset[1, kind, 0], table.rank[1, kind], table.scaling[1, kind] = 0, 5, 0.25
    table.arena[5 * VOCABULARY : 8 * VOCABULARY] = 0
    owned = {1: [0, *range(3, 38), 40], 3: [7, 41, 44]}
    table.extras = {
        slot: Extras(frozenset({EMBEDDING}), {EMBEDDING: give_rows(table, slot, EMBEDDING, tokens, 1000 * slot)}, 45)
        for slot, tokens in owned.items()
    }
    ids = torch.tensor([*range(VOCABULARY), 7, 41, 44, 43, 8, 7, 20])
    slots = torch.tensor([1] * VOCABULARY + [3] * 4 + [3, -1, 2], dtype=torch.int32)
    embedding = torch.randn(VOCABULARY, 24).to(dtype)
    batch = LoraBatch.build(table, slots, torch.ones(len(ids)))
    assert batch is not None
    base = torch.nn.functional.embedding(ids.clamp(max=40), embedding)
    found, expected = base.clone(), base.clone()
    adapt_embeddings(found, ids, make_rounds(table, batch, len(ids)), table)
    embedded = embed(ids, embedding, batch)
    assert embedded is not None
    expected[embedded.tokens] = embedded.values.to(dtype)
    torch.testing.assert_close(found, expected, atol=20 * TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    changed = (found != base).any(1)
    assert changed[:VOCABULARY].all() and changed[VOCABULARY:].tolist() == [
        True,
        True,
        True,
        False,
        False,
        False,
        False,
    ]


@every_dtype
@pytest.mark.parametrize("programs", [3, 1])
def test_logits_of_rows_that_adapters_bring(programs: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several pages beside ranks; of tokens that the base lacks; in a smaller vocabulary; and none."""
    use_processors(monkeypatch, programs)
    # Not the compiled kernel, which has tests of its own and takes ten seconds for each dtype.
    monkeypatch.setattr(vocabulary, "add_lora", lora_reference)
    torch.manual_seed(0)
    size, width, kind = 40, VOCABULARY + 30, KINDS.index(HEAD)
    table = make_table(size, 1, dtype)
    table.offset[0, kind, 0], table.rank[0, kind], table.scaling[0, kind] = 0, 8, 0.25
    owned = {0: ([0, *range(3, 38), 40], VOCABULARY), 1: ([5, *range(41, 70)], 70), 3: ([2], 33)}
    for slot, (tokens, known) in owned.items():
        rows = {HEAD: give_rows(table, slot, HEAD, tokens, 1000 * (slot + 1))}
        table.extras[slot] = Extras(frozenset({HEAD}), rows, known, own_logits=True)
        table.vocabularies[slot] = 0 if known == VOCABULARY else known
    slots = torch.tensor([1, 0, -1, 3, 2, *[1] * 17, 0], dtype=torch.int32)
    count = len(slots)
    batch = LoraBatch.build(table, slots, torch.ones(count))
    assert batch is not None and batch.own_logits
    hidden, base = torch.randn(count, size).to(dtype), torch.randn(count, VOCABULARY)
    expected = adapt_logits(base.clone(), hidden, torch.arange(count), batch)
    found = torch.full((count, width), float("-inf"))
    found[:, :VOCABULARY] = base
    rounds = [StepBuffers(table, count)]
    for step in (LoraBatch.build(table, slots.where(slots == 3, -1), torch.ones(count)), batch):
        # The same launches for one adapter and for many, as a graph has them.
        rounds[0].update(step)
        adapt_own_logits(found, hidden, rounds, table)
    add_rounds(found, hidden, rounds, table, 0, (HEAD,), has_vectors=True)
    assert expected.shape == (count, 70) and (found[:, 70:] == float("-inf")).all()
    torch.testing.assert_close(found[:, :70], expected, atol=1e-3, rtol=1e-4)
    assert torch.equal(found[2, :VOCABULARY], base[2]) and torch.equal(found[4, :VOCABULARY], base[4])
    assert found[3].isfinite().sum() == 33 and found[0].isfinite().sum() == 70
