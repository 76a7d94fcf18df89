"""Gains and shifts against the formula, token by token, among tokens and linears that have none."""

import pytest
import torch

from loraplex.lora.apply.apply import add_lora
from loraplex.lora.apply.batch import LoraBatch, PageTable
from tests.lora.signatures import LINEARS

from .pages import random_table

SHAPES = {kind: (24, 2 * index + 30) for index, kind in enumerate(LINEARS)}
GROUP = ("q_proj", "k_proj", "v_proj")
LAYERS, SLOTS = 2, 3


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def table(request: pytest.FixtureRequest) -> PageTable:
    return vector_table(request.param)


def vector_table(dtype: torch.dtype) -> PageTable:
    """Adapters without ranks; slot 1 has vectors on q and v, slot 2 on k; NaN everywhere else."""
    table = random_table(SHAPES, [{"q_proj": 1}] * SLOTS, LAYERS, dtype)
    table.rank.zero_()
    table.arena = torch.full((8192,), torch.nan, dtype=dtype)
    table.floats.fill_(torch.nan)
    start = 64
    for slot, kind in ((1, "q_proj"), (1, "v_proj"), (2, "k_proj")):
        size = LAYERS * 2 * SHAPES[kind][1]
        table.floats[start : start + size] = torch.randn(size)
        table.vectors[slot, LINEARS.index(kind)] = start
        start += size + 32
    return table


def expected(y: torch.Tensor, table: PageTable, slots: list[int], scales: torch.Tensor, layer: int) -> torch.Tensor:
    result = y.clone()
    for token, (slot, scale) in enumerate(zip(slots, scales, strict=True)):
        first = 0
        for kind in GROUP:
            width = SHAPES[kind][1]
            start = int(table.vectors[slot, LINEARS.index(kind)]) if slot >= 0 else -1
            if start >= 0:
                page = table.floats[start : start + LAYERS * 2 * width].view(LAYERS, 2, width)[layer]
                row = result[token, first : first + width]
                row.copy_((row.float() * page[0] + scale * page[1]).to(y.dtype))
            first += width
    return result


@pytest.mark.parametrize("slots", [[1], [0, 1, 2, -1, 1, 0], [2] * 40 + [-1, 1]], ids=len)
def test_each_token_has_the_vectors_of_its_own_adapter(table: PageTable, slots: list[int]) -> None:
    dtype = table.arena.dtype
    x, y = (
        torch.randn(len(slots), 24).to(dtype),
        torch.randn(len(slots), sum(SHAPES[kind][1] for kind in GROUP)).to(dtype),
    )
    scales = torch.linspace(1.0, -0.5, len(slots))
    batch = LoraBatch.build(table, torch.tensor(slots, dtype=torch.int32), scales)
    assert batch is not None
    for layer in range(LAYERS):
        result = y.clone()
        add_lora(result, x, batch, layer, GROUP)
        torch.testing.assert_close(result, expected(y, table, slots, scales, layer), rtol=1e-6, atol=1e-6)
