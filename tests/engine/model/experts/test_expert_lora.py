"""Adapters on experts against torch: by routing, how popular adapters are, how many a token has, and dtype."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from loraplex.engine.model.kernels.expert_lora import SHARED_OUT, add_expert_lora
from loraplex.engine.model.operations.cpu import OPERATIONS
from loraplex.lora.apply.apply import kernel_arrays, lora_reference
from loraplex.lora.apply.batch import LoraBatch, PageTable
from tests.lora.kernels.pages import random_table
from tests.lora.signatures import LINEARS

KERNELS = OPERATIONS.experts
INPUTS, OUTPUTS, LAYERS, LAYER, SLOTS = 70, 45, 3, 1, 4
EXPERTS = (("q_proj", "k_proj"), ("v_proj", "o_proj"), ("gate_proj", "up_proj"))
"""Each of them with two linears."""
RANKS = [
    {"q_proj": 3, "k_proj": 9},
    dict.fromkeys(LINEARS, 16),
    {"up_proj": 1},
    {"v_proj": 8, "gate_proj": 33, "up_proj": 33},
]
ROUTING: dict[str, Callable[[int], torch.Tensor]] = {
    "spread": lambda tokens: torch.stack([torch.randperm(3)[:2] for _ in range(tokens)]),
    "one expert": lambda tokens: torch.full((tokens, 1), 2),
    "none of the first": lambda tokens: torch.tensor([[2, 1]] * tokens),
}
POPULARITY: dict[str, Callable[[int], torch.Tensor]] = {
    "even": lambda tokens: torch.randint(-1, SLOTS, (tokens, 1)),
    "identical": lambda tokens: torch.full((tokens, 1), 1),
    "none acts": lambda tokens: torch.full((tokens, 1), -1),
    "two each": lambda tokens: torch.stack([torch.randperm(SLOTS + 1)[:2] - 1 for _ in range(tokens)]),
}
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


@pytest.fixture(scope="module", params=TOLERANCE, ids=str)
def table(request: pytest.FixtureRequest) -> PageTable:
    """NaN lies between the pages."""
    return random_table(dict.fromkeys(LINEARS, (INPUTS, OUTPUTS)), RANKS, LAYERS, request.param)


def run(table: PageTable, experts: torch.Tensor, slots: torch.Tensor, x: torch.Tensor, scale: torch.Tensor) -> None:
    """What the kernel adds and what torch adds to the same rows, which are compared; x [T, inputs]."""
    rows = KERNELS.group(experts, len(EXPERTS))
    x, slots = x[rows.tokens], slots.to(torch.int32)
    y = torch.randn(len(x), 2 * OUTPUTS)
    wanted = y.clone()
    for expert, first, last in rows.touched():
        own = rows.tokens[first:last]
        batch = LoraBatch.build(table, slots[own], scale[own])
        if batch is not None:
            lora_reference(wanted[first:last], x[first:last], batch, LAYER, EXPERTS[expert])
    batch = LoraBatch.build(table, slots, scale)
    before = y.clone()
    if batch is not None:
        arena, offset, rank, scaling, *_, floats, vectors, token_slot = kernel_arrays(batch)
        kinds = np.array([table.group(group).rows for group in EXPERTS])
        firsts, ordinals = np.array([0, OUTPUTS, 2 * OUTPUTS]), np.full(len(EXPERTS), LAYER)
        add_expert_lora(
            y.numpy(), x.numpy(), rows.starts.numpy(), rows.tokens.numpy(), kinds, ordinals, firsts, arena, offset,
            rank, scaling, floats, vectors, token_slot, batch.token_scale.numpy(), 2,
        )  # fmt: skip
    assert (y - wanted).abs().max() < TOLERANCE[table.arena.dtype] * max(1.0, float(wanted.abs().max()))
    untouched = (wanted == before).all(1)
    assert torch.equal(y[untouched], before[untouched])


@pytest.mark.parametrize("routing", ROUTING)
@pytest.mark.parametrize("popularity", POPULARITY)
@pytest.mark.parametrize("tokens", [1, 7, 130])
def test_rows_get_what_their_adapters_add_to_their_expert(
    table: PageTable, routing: str, popularity: str, tokens: int
) -> None:
    torch.manual_seed(tokens)
    x = torch.randn(tokens, INPUTS)
    x = x.bfloat16().float() if table.arena.dtype == torch.bfloat16 else x
    slots = POPULARITY[popularity](tokens)
    run(table, ROUTING[routing](tokens), slots, x, torch.rand(slots.shape) + 0.5)


@pytest.mark.parametrize("popularity", POPULARITY)
@pytest.mark.parametrize("tokens", [5, 60])
def test_who_takes_an_expert_changes_no_bit(table: PageTable, popularity: str, tokens: int) -> None:
    """Of many experts a worker takes whole ones; of few, all workers share each."""
    torch.manual_seed(tokens)
    many = EXPERTS * 5
    rows = KERNELS.group(torch.stack([torch.randperm(len(many))[:6] for _ in range(tokens)]), len(many))
    slots = POPULARITY[popularity](tokens).to(torch.int32)
    batch = LoraBatch.build(table, slots, torch.rand(slots.shape) + 0.5)
    if batch is None:
        return
    x, y = torch.randn(len(rows.tokens), INPUTS), torch.randn(len(rows.tokens), 2 * OUTPUTS)
    arena, offset, rank, scaling, *_, floats, vectors, token_slot = kernel_arrays(batch)
    kinds = np.array([table.group(group).rows for group in many])
    firsts, ordinals = np.array([0, OUTPUTS, 2 * OUTPUTS]), np.full(len(many), LAYER)
    found = []
    for workers in (1, 2, 20):
        assert (int((rows.starts.diff() > 0).sum()) >= SHARED_OUT * workers) == (workers < 20)
        found.append(y.clone())
        add_expert_lora(
            found[-1].numpy(), x.numpy(), rows.starts.numpy(), rows.tokens.numpy(), kinds, ordinals, firsts, arena,
            offset, rank, scaling, floats, vectors, token_slot, batch.token_scale.numpy(), workers,
        )  # fmt: skip
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[2])
    assert not torch.equal(found[0], y)
