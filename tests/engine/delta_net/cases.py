"""Random layers and steps of a gated delta net."""

import itertools

import torch

from loraplex.engine.batch import Batch, StateSlots
from loraplex.engine.delta_net.backend import DeltaWeights, Projections
from loraplex.engine.delta_net.shape import StateShape

SHAPE = StateShape(num_key_heads=2, num_value_heads=4, key_head_dim=32, value_head_dim=48, conv_kernel=4)
ODD = StateShape(num_key_heads=1, num_value_heads=3, key_head_dim=12, value_head_dim=20, conv_kernel=3)
Part = tuple[int, int, int]
"""Of a sequence in a step: its first position, its tokens, its slot."""


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_weights(shape: StateShape = SHAPE, seed: int = 1) -> DeltaWeights:
    heads = shape.num_value_heads
    return DeltaWeights(
        conv=random(shape.conv_kernel, shape.channels, seed=seed) / 2,
        decay=random(heads, seed=seed + 1).exp(),
        dt_bias=random(heads, seed=seed + 2),
        norm=random(shape.value_head_dim, seed=seed + 3),
        eps=1e-6,
    )


def make_projections(tokens: int, shape: StateShape = SHAPE, seed: int = 10) -> Projections:
    heads = shape.num_value_heads
    return Projections(
        random(tokens, shape.channels, seed=seed),
        random(tokens, shape.value_size, seed=seed + 1),
        random(tokens, heads, seed=seed + 2),
        random(tokens, heads, seed=seed + 3),
    )


def some(projections: Projections, first: int, last: int) -> Projections:
    parts = (projections.qkv, projections.gate, projections.beta, projections.step)
    return Projections(*(part[first:last].contiguous() for part in parts))


def joined(parts: list[Projections]) -> Projections:
    return Projections(
        torch.cat([part.qkv for part in parts]),
        torch.cat([part.gate for part in parts]),
        torch.cat([part.beta for part in parts]),
        torch.cat([part.step for part in parts]),
    )


def make_batch(parts: list[Part], kept: list[list[tuple[int, int]]] | None = None) -> Batch:
    """kept: of each sequence, (token of its part after which, slot)."""
    starts = [0, *itertools.accumulate(count for _, count, _ in parts)]
    kept = kept or [[] for _ in parts]
    rows = [(start + token, slot) for start, pairs in zip(starts, kept, strict=False) for token, slot in pairs]
    numbers = torch.tensor(rows, dtype=torch.int32).view(-1, 2)
    empty = torch.empty(0, dtype=torch.int64)
    return Batch(
        token_ids=empty,
        positions=torch.cat([torch.arange(first, first + count) for first, count, _ in parts]),
        slot_mapping=empty,
        query_starts=torch.tensor(starts, dtype=torch.int32),
        context_lengths=empty,
        block_tables=empty,
        sample_rows=empty,
        states=StateSlots(
            slots=torch.tensor([slot for *_, slot in parts], dtype=torch.int32),
            kept_starts=torch.tensor([0, *itertools.accumulate(map(len, kept))], dtype=torch.int32),
            kept_tokens=numbers[:, 0].contiguous(),
            kept_slots=numbers[:, 1].contiguous(),
        ),
    )
