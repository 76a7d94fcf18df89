"""Attention to both sides, against softmax written out in float64, with the mask of transformers."""

from itertools import pairwise

import pytest
import torch
from transformers.masking_utils import sliding_window_bidirectional_mask_function

from loraplex.engine.attention.bidirectional import attend_all

from .test_cpu import random

LENGTHS = [1, 7, 300, 0, 2, 129, 256]
STARTS = torch.tensor([0, 1, 8, 308, 308, 310, 439, 695], dtype=torch.int32)
HEADS = {"mha": (4, 4), "gqa": (8, 2)}


def numbers(heads: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query, key, value = (random(695, count, 32, seed=seed) for seed, count in enumerate((heads[0], *[heads[1]] * 2)))
    return query, key, value


def expected(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, reach: int | None
) -> torch.Tensor:
    """Token by token."""
    group, found = query.shape[1] // key.shape[1], torch.zeros_like(query, dtype=torch.float64)
    for first, last in pairwise(STARTS.tolist()):
        near = sliding_window_bidirectional_mask_function(last if reach is None else reach)
        places = torch.arange(first, last)
        for token in range(first, last):
            seen = places[near(0, 0, torch.tensor(token), places)]
            keys, values = (part[seen].double().repeat_interleave(group, 1) for part in (key, value))
            weights = (torch.einsum("hd,shd->hs", query[token].double(), keys) * scale).softmax(-1)
            found[token] = torch.einsum("hs,shd->hd", weights, values)
    return found


@pytest.mark.parametrize("reach", [None, 0, 1, 64, 128, 1000])
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS.keys())
def test_equals_softmax_written_out(heads: tuple[int, int], reach: int | None) -> None:
    parts = numbers(heads)
    found = attend_all(*parts, STARTS, 0.3, reach)
    torch.testing.assert_close(found.double(), expected(*parts, 0.3, reach), atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("reach", [None, 64])
def test_a_sequence_does_not_depend_on_its_neighbours(reach: int | None) -> None:
    query, key, value = numbers((4, 4))
    together = attend_all(query, key, value, STARTS, 0.3, reach)
    for first, last in pairwise(STARTS.tolist()):
        own = slice(first, last)
        alone = attend_all(query[own], key[own], value[own], torch.tensor([0, last - first]), 0.3, reach)
        assert torch.equal(alone, together[own])
    key[8:308], value[310:] = float("nan"), float("inf")
    poisoned = attend_all(query, key, value, STARTS, 0.3, reach)
    clean = [*range(8), 308, 309]
    assert torch.equal(poisoned[clean], together[clean]) and not poisoned[8:308].isfinite().any()
