"""Sizes that steps are padded to, and how many steps are captured."""

from itertools import pairwise

import pytest

from loraplex.engine.config import EngineConfig
from loraplex.engine.runner.step_sizes import StepSizes, all_sizes, finest_sizes, pad_size, size_ladder
from loraplex.engine.startup.gpu_memory import GRAPHS_SHARE, GraphPlan, plan_graphs

GB = 10**9


@pytest.mark.parametrize("most", [1, 3, 8, 17, 256, 300, 1000])
def test_every_count_has_a_size_that_wastes_little(most: int) -> None:
    ladder = size_ladder(most)
    assert list(ladder) == sorted({*ladder}) and ladder[-1] == most
    for count in range(1, most + 1):
        size = pad_size(count, ladder)
        assert count <= size <= max(count + 31 if count > 256 else count + 7, 1)


@pytest.mark.parametrize(("sequences", "tokens"), [(1, 1), (2, 4), (7, 24), (64, 2048), (256, 8192), (300, 5000)])
def test_sizes_are_fewer_from_choice_to_choice_and_hold_all_steps(sequences: int, tokens: int) -> None:
    choices = [*all_sizes(sequences, tokens)]
    for sizes in choices:
        for ladder, most in zip(sizes, (sequences, tokens), strict=True):
            assert list(ladder) == sorted({*ladder}) and ladder[-1] == most
            assert all(later <= 2 * size for size, later in pairwise(ladder))
    counts = [sizes.captured for sizes in choices]
    assert counts == sorted(counts, reverse=True) and choices[0] == finest_sizes(sequences, tokens)


def test_the_coarsest_sizes_of_prompts_are_octaves_and_the_finest_waste_a_fifth_at_most() -> None:
    finest, _, coarsest = all_sizes(64, 2048)
    assert coarsest.prompts == (16, 32, 64, 128, 256, 512, 1024, 2048)
    assert coarsest.decodes == (1, 2, 4, 8, 16, 32, 64)
    for tokens in range(129, 2049):
        assert pad_size(tokens, finest.prompts) <= 1.25 * tokens


def plan(total: int, layers: int = 32, sequences: int = 64) -> GraphPlan:
    return plan_graphs(EngineConfig(model="m", max_num_seqs=sequences, max_num_batched_tokens=2048), layers, total)


def test_a_cards_memory_decides_how_many_steps_are_captured() -> None:
    choices: list[StepSizes] = [*all_sizes(64, 2048)]
    plans = {total: plan(total * GB) for total in (8, 24, 40, 80, 141)}
    assert [choices.index(found.sizes) for found in plans.values()] == [2, 2, 1, 0, 0]
    for total, found in plans.items():
        assert found.sizes.captured <= found.most <= 1.5 * found.sizes.captured
        coarsest = found.sizes == choices[-1]
        assert found.bytes <= GRAPHS_SHARE * total * GB or (coarsest and found.most == found.sizes.captured)
    assert plan(80 * GB, layers=80).sizes != choices[0], "a larger model has larger graphs"
