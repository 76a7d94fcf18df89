"""The chunk list, the bound on its length, and steps that use no adapter."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loraplex.engine.batch import Batch
from loraplex.engine.model.linear import LoraLinear
from loraplex.lora.apply.batch import RANKS_PER_PAGE, LoraBatch, PageTable
from loraplex.lora.apply.chunks import make_chunks
from loraplex.lora.files.config_fields import MAX_RANK
from loraplex.lora.kernels.cuda.tiles import (  # fmt: skip
    ALIGNMENT_BYTES,
    MOST_CHUNKS,
    MOST_SPLITS,
    PAGE,
    ROWS,
    SPLIT_INPUTS,
    bound_chunks,
    count_split_inputs,
    intermediate_elements,
    most_grid_tokens,
)
from loraplex.lora.residency import pages
from tests.lora.signatures import LINEARS

from .pages import random_table


def table_of(slots: int) -> PageTable:
    return random_table(dict.fromkeys(LINEARS, (8, 8)), [{"o_proj": 1}] * slots, 1, torch.float32)


@given(st.lists(st.integers(-1, 4), min_size=1, max_size=200), st.integers(5, 9))
def test_chunks_hold_every_row_of_an_adapter_once(slots: list[int], resident: int) -> None:
    step = torch.tensor(slots, dtype=torch.int32)
    batch = LoraBatch.build(table_of(5), step, torch.ones(len(slots)))
    if batch is None:
        return
    chunks = make_chunks(batch.segment_starts.numpy(), batch.segment_slots.numpy())
    assert chunks.dtype == np.int32 and len(chunks) <= bound_chunks(len(slots), resident)
    seen = [(row, slot) for slot, first, count in chunks.tolist() for row in range(first, first + count)]
    assert seen == [(row, slots[token]) for row, token in enumerate(batch.sorted_tokens.tolist())]
    assert chunks[:, 2].max() <= ROWS


@pytest.mark.parametrize(("tokens", "slots"), [(1, 1), (16, 1), (17, 1), (64, 64), (64, 1000), (100, 3), (8192, 64)])
def test_no_list_is_longer_than_the_bound_and_the_longest_reaches_it(tokens: int, slots: int) -> None:
    used = min(tokens, slots)
    most = np.ones(used, np.int64)
    most[0] += (tokens - used) // ROWS * ROWS
    most[-1] += (tokens - used) % ROWS
    starts = np.concatenate([[0], np.cumsum(most)])
    assert len(make_chunks(starts, np.arange(used))) == bound_chunks(tokens, slots)


@pytest.mark.parametrize("slots", [1, 64, 256, 5000, 65535, 1 << 20])
def test_the_chunks_of_the_largest_step_fit_a_grid_and_those_of_a_larger_one_do_not(slots: int) -> None:
    tokens = most_grid_tokens(slots)
    assert bound_chunks(tokens, slots) <= MOST_CHUNKS < bound_chunks(tokens + ROWS, slots)
    assert intermediate_elements(tokens, MAX_RANK // PAGE) < 2**31, "its rows are counted in 32 bits"


@pytest.mark.parametrize("inputs", [1, 64, 896, 1023, 4096, 14336])
@pytest.mark.parametrize("item_size", [2, 4])
@pytest.mark.parametrize("tokens", [1, 256, 257])
def test_no_split_is_empty_and_small_steps_are_split(inputs: int, item_size: int, tokens: int) -> None:
    split = count_split_inputs(inputs, tokens, item_size)
    splits = -(-inputs // split)
    assert split % (256 // item_size) == 0
    assert splits == 1 if tokens > 256 or inputs <= SPLIT_INPUTS else 1 < splits <= MOST_SPLITS


def test_kernels_and_page_store_agree_on_pages() -> None:
    assert (PAGE, ALIGNMENT_BYTES) == (RANKS_PER_PAGE, pages.ALIGNMENT_BYTES)


def test_a_step_of_the_base_alone_launches_nothing() -> None:
    launches: list[str] = []
    operations = SimpleNamespace(add_lora=lambda *arguments: launches.append("lora"))
    none, y, x = torch.empty(0), torch.randn(3, 8), torch.randn(3, 8)

    class Base:
        def apply(self, x: torch.Tensor) -> torch.Tensor:
            return y

    o_proj = LoraLinear(Base(), 0, ("o_proj",), operations)  # type: ignore[arg-type]
    for slots, launched in (([-1, -1, -1], []), ([-1, 0, -1], ["lora"])):
        lora = LoraBatch.build(table_of(1), torch.tensor(slots, dtype=torch.int32), torch.ones(3))
        assert o_proj.apply(x, Batch(*[none] * 7, lora=lora)) is y
        assert launches == launched
