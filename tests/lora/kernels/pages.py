"""Random adapters in rank pages, for the tests and the benchmark of the kernels."""

import torch

from loraplex.lora.apply.batch import RANKS_PER_PAGE, PageTable
from tests.lora.signatures import LINEARS, row_shapes

Ranks = list[dict[str, int]]
"""For each slot: kind -> rank, kinds left out are not adapted."""


def random_table(
    shapes: dict[str, tuple[int, int]], ranks: Ranks, layers: int, dtype: torch.dtype, seed: int = 0
) -> PageTable:
    """Pages in random order with NaN between them and in the table's unused corners."""
    generator = torch.Generator().manual_seed(seed)
    pages_needed = max(-(-rank // RANKS_PER_PAGE) for slot in ranks for rank in slot.values())
    offset = torch.full((len(ranks), len(LINEARS), pages_needed), -(1 << 40), dtype=torch.int64)
    rank_table = torch.zeros(len(ranks), len(LINEARS), layers, dtype=torch.int32)
    chunks, position = [], 0
    for slot, kind, page, size in _pages(shapes, ranks, layers, generator):
        gap = int(torch.randint(1, 9, (), generator=generator))
        chunks.append(torch.full((gap,), float("nan")))
        offset[slot, LINEARS.index(kind), page] = position + gap
        used = min(RANKS_PER_PAGE, ranks[slot][kind] - page * RANKS_PER_PAGE)
        chunks.append(_random_page(shapes[kind], layers, used, generator).flatten())
        position += gap + size
        rank_table[slot, LINEARS.index(kind)] = ranks[slot][kind]
    scaling = torch.rand(rank_table.shape, generator=generator) + 0.5
    return PageTable(torch.cat(chunks).to(dtype), offset, rank_table, scaling, row_shapes(shapes, LINEARS))


def _pages(
    shapes: dict[str, tuple[int, int]], ranks: Ranks, layers: int, generator: torch.Generator
) -> list[tuple[int, str, int, int]]:
    pages = [
        (slot, kind, page, layers * RANKS_PER_PAGE * sum(shapes[kind]))
        for slot, kinds in enumerate(ranks)
        for kind, rank in kinds.items()
        for page in range(-(-rank // RANKS_PER_PAGE))
    ]
    return [pages[i] for i in torch.randperm(len(pages), generator=generator).tolist()]


def _random_page(shape: tuple[int, int], layers: int, used: int, generator: torch.Generator) -> torch.Tensor:
    a = torch.randn(layers, RANKS_PER_PAGE, shape[0], generator=generator) / shape[0] ** 0.5
    b = torch.randn(layers, RANKS_PER_PAGE, shape[1], generator=generator)
    a[:, used:] = 0
    b[:, used:] = 0
    return torch.cat([a.flatten(1), b.flatten(1)], 1)
