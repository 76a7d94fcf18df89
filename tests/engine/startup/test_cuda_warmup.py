"""What the warm-up on CUDA compiles is all that any step asks for later."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from loraplex.engine.attention.kernels.cuda.tiles import (
    bound_tiles,
    choose_tile,
    count_spare,
    count_splits,
    likely_sequences,
    most_spare,
)
from loraplex.engine.config import EngineConfig
from loraplex.engine.runner.step_sizes import StepSizes, finest_sizes, pad_size
from loraplex.engine.startup import cuda_warmup
from loraplex.quant.kernels.cuda.card import Card
from loraplex.quant.kernels.cuda.tiles import DENSE_ROWS
from loraplex.quant.kernels.cuda.tiles import choose_tile as choose_rows
from tests.cards import CARDS

HEADS = {
    "8B": (32, 8, 128), "0.5B": (14, 2, 64), "3B": (16, 2, 128), "7B": (32, 32, 128), "70B": (64, 8, 128),
    "heads of 256": (8, 4, 256),
}  # fmt: skip
"""Query heads, KV heads and their size."""
Shape = tuple[int, int, bool]
"""Tokens, sequences, Batch.mixed."""
STEPS = [(2048, 256, 8192), (8192, 64, 4096), (512, 64, 4096)]
"""Tokens and sequences of a step at most, and tokens of a sequence."""


def warmed_shapes(monkeypatch: pytest.MonkeyPatch, tokens: int, sequences: int, length: int) -> set[Shape]:
    """Of every step that the warm-up runs."""
    shapes, sizes = set[Shape](), finest_sizes(sequences, tokens)

    def note(runner: Any, config: EngineConfig, steps: Iterator[cuda_warmup.Step]) -> None:
        for counts, params, _ in steps:
            if params is cuda_warmup.DESCRIBED or sum(counts) == len(counts):
                shapes.add((sum(counts), len(counts), False))
            else:
                shapes.add(padded(sum(counts), sizes))

    monkeypatch.setattr(cuda_warmup, "_run", note)
    runner: Any = SimpleNamespace(
        adapters=SimpleNamespace(table=SimpleNamespace(extras={}, shapes={})),
        inputs=SimpleNamespace(sizes=sizes),
        decoder=SimpleNamespace(embedding=SimpleNamespace(table=[])),
        cache=SimpleNamespace(copy_blocks=lambda pairs: None),
        states=None,
    )  # fmt: skip
    monkeypatch.setattr(cuda_warmup, "without_graphs", lambda runner: runner)
    config = EngineConfig(model="none", max_num_batched_tokens=tokens, max_num_seqs=sequences)
    cuda_warmup.warm_up_cuda(runner, config, length)
    return shapes


def padded(tokens: int, sizes: StepSizes) -> Shape:
    """Of a captured step with prompts."""
    tokens = pad_size(tokens, sizes.prompts)
    return tokens, min(tokens, sizes.decodes[-1]), True


def attention_numbers(
    tokens: int, sequences: int, mixed: bool, heads: tuple[int, int, int], card: Card, length: int,
    uneven: bool = False,
) -> set[Any]:  # fmt: skip
    """What `attend` and `merge` are compiled for in a step."""
    query_heads, kv_heads, size = heads
    tile = choose_tile(tokens, likely_sequences(tokens, sequences, mixed), query_heads, kv_heads, size, 2, 16, card)
    queries = tile.rows // (query_heads // kv_heads)
    programs = bound_tiles(tokens, sequences, queries) * kv_heads
    if tokens == sequences and not mixed:
        spare = count_spare(sequences, kv_heads, length, uneven, card)
        parts = (most_spare(kv_heads, card) - 1).bit_length()
        attend = ("attend", tile, card.can_chain and spare > 0, spare > 0)
        return {attend, ("merge", queries, tile.keys, parts, "shared")} if spare else {attend}
    splits = count_splits(tokens, sequences, programs, length, card)
    attend = ("attend", tile, card.can_chain and splits > 1, False)
    return {attend} if splits == 1 else {attend, ("merge", queries, tile.keys, (splits - 1).bit_length())}


@pytest.mark.parametrize("most", STEPS, ids=str)
@pytest.mark.parametrize("architecture", CARDS)
@pytest.mark.parametrize("model", HEADS)
def test_no_step_asks_for_attention_that_was_not_compiled(
    model: str, architecture: int, most: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, sequences, length = most
    warmed = {
        number
        for shape in warmed_shapes(monkeypatch, *most)
        for number in attention_numbers(*shape, HEADS[model], CARDS[architecture], length)
    }
    for count in range(1, tokens + 1):
        for several in {1, 2, 3, 5, 8, 13, 21, 34, 55, sequences}:
            if several <= min(count, sequences):
                for uneven in (False, True):
                    asked = attention_numbers(count, several, False, HEADS[model], CARDS[architecture], length, uneven)
                    assert asked <= warmed, f"{count} tokens of {several} sequences: {asked - warmed}"


@pytest.mark.parametrize("most", STEPS, ids=str)
def test_every_size_of_prompts_is_captured(most: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """So no such step asks for anything else."""
    sizes = finest_sizes(most[1], most[0])
    shapes = {shape for shape in warmed_shapes(monkeypatch, *most) if shape[2]}
    assert shapes == {padded(tokens, sizes) for tokens in range(1, most[0] + 1)}


@pytest.mark.parametrize("architecture", CARDS)
def test_no_step_asks_for_a_packed_product_that_was_not_compiled(
    architecture: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its outputs and inputs: how they are shared out is no matter of what is compiled."""
    card = CARDS[architecture]
    for most in STEPS:
        warmed = {choose_rows(rows, card) for rows, *_ in warmed_shapes(monkeypatch, *most) if rows <= DENSE_ROWS}
        missing = [rows for rows in range(1, DENSE_ROWS + 1) if choose_rows(rows, card) not in warmed]
        assert not missing, f"{missing[0]} to {missing[-1]} rows"
