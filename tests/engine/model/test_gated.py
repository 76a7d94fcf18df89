"""Adapters and activation of gate and up in one pass: the same bits as one after the other."""

import numpy as np
import pytest
import torch

from loraplex.engine.kernels.silu import silu_rows
from loraplex.engine.model.kernels.gated import LEAST_TOKENS, add_lora_silu, has_vectors
from loraplex.lora.apply.apply import kernel_arrays
from loraplex.lora.apply.batch import LoraBatch, PageTable
from loraplex.lora.kernels.cpu import add_lora
from tests.lora.signatures import KINDS, LINEARS

from ...lora.kernels.pages import random_table

HIDDEN, INTERMEDIATE, LAYERS = 70, 1040, 2
SHAPES = {
    kind: (INTERMEDIATE, HIDDEN)
    if kind == "down_proj"
    else (HIDDEN, INTERMEDIATE if kind in ("gate_proj", "up_proj") else 32)
    for kind in LINEARS
}
KIND_INDICES = np.array([KINDS.index(kind) for kind in ("gate_proj", "up_proj")])
FIRSTS = np.array([0, INTERMEDIATE, 2 * INTERMEDIATE])
RANKS = (1, 8, 33, 5)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def table(request: pytest.FixtureRequest) -> PageTable:
    """The last adapter changes gate only."""
    modules = [dict.fromkeys(LINEARS, rank) for rank in RANKS[:-1]] + [{"gate_proj": RANKS[-1]}]
    return random_table(SHAPES, modules, LAYERS, request.param)


@pytest.mark.parametrize("tokens", [LEAST_TOKENS, 131])
@pytest.mark.parametrize("places", [1, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_equals_one_after_the_other(table: PageTable, tokens: int, places: int, workers: int) -> None:
    """Prompts of several adapters, of the base, and single tokens between them; sums of up to three adapters."""
    torch.manual_seed(tokens)
    slots = torch.repeat_interleave(torch.tensor([0, 2, -1, 1, 3, 2]), torch.tensor([40, 1, 9, 1, 5, tokens - 56]))
    slots = torch.stack([slots] + [torch.where(slots >= 0, (slots + place) % 4, -1) for place in range(1, places)], 1)
    batch = LoraBatch.build(table, slots.to(torch.int32), torch.rand(tokens, places) + 0.5)
    assert batch is not None
    x, gate_up = torch.randn(tokens, HIDDEN).numpy(), torch.randn(tokens, 2 * INTERMEDIATE).numpy()
    *arrays, rounds = kernel_arrays(batch)[:9]
    expected, result, whole = (np.full((tokens, INTERMEDIATE), np.nan, np.float32) for _ in range(3))
    silu_rows(gate_up, whole)
    one_by_one = gate_up.copy()
    add_lora(one_by_one, x, 1, KIND_INDICES, FIRSTS, *arrays, rounds, workers)
    silu_rows(one_by_one, expected)
    add_lora_silu(gate_up, x, result, 1, KIND_INDICES, FIRSTS, *arrays, workers)
    assert np.array_equal(result, expected)
    changed = (result != whole).any(axis=1)
    assert np.array_equal(changed, (slots >= 0).any(dim=1).numpy())


def test_knows_adapters_with_gains_and_shifts() -> None:
    vectors = np.full((2, len(KINDS)), -1)
    assert not has_vectors(vectors, np.array([0, 1]), KIND_INDICES)
    vectors[1, KINDS.index("q_proj")] = 64
    assert not has_vectors(vectors, np.array([0, 1]), KIND_INDICES)
    vectors[1, KINDS.index("up_proj")] = 64
    assert has_vectors(vectors, np.array([0, 1]), KIND_INDICES) and not has_vectors(
        vectors, np.array([0]), KIND_INDICES
    )
