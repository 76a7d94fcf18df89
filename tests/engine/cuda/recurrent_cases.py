"""Recurrent layers on CUDA's path against transformers and peft: states in slots, kept on the way, copied to forks."""

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import make_adapter, make_checkpoint
from tests.engine.cuda_engine import TINY, cuda, open_llm
from tests.engine.recorded_graph import RecordedGraph
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

from .batch_cases import WARM_UP
from .guard import guard_memory
from .requests import LENGTHS, NAMES, greedy, prompts, run, tokens, with_peft

__all__ = ["cuda", "one_patch_a_module", "poisoned_memory", "prompts", "rounding"]
pytestmark = pytest.mark.usefixtures("cuda")

HYBRID: dict[str, Any] = {
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"), "qwen3_5", **(TINY | HYBRID))


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        "rank8": make_adapter(folder / "rank8", base, rank=8, seed=1, kinds="all-linear"),
        "rank12": make_adapter(folder / "rank12", base, rank=12, seed=2, kinds=("in_proj_qkv", "in_proj_b", "q_proj")),
    }


def test_a_mixed_batch_equals_transformers_and_peft(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]]
) -> None:
    """Chunks of prompts beside captured decodes, then all of it again from snapshots; few states at a time."""
    expected = with_peft(base, adapters, prompts, NAMES)
    with open_llm(base, adapters, num_state_slots=6) as llm:
        assert tokens(run(llm, prompts, NAMES)) == expected
        again = run(llm, prompts, NAMES)
        assert llm.status().free_states == 5
    assert tokens(again) == expected
    assert [output.num_cached_tokens for output in again] == [(length - 1) // 16 * 16 for length in LENGTHS]
    assert RecordedGraph.captured > 0 and RecordedGraph.replayed > 0
    # Forks begin with the state before the last token of the prompt.
    with open_llm(base, adapters) as llm:
        forked = run(llm, prompts[1:2], NAMES[1:2], greedy(n=2))
        assert llm.status().prompt_tokens == LENGTHS[1] + 1
    assert tokens(forked) == [expected[1] * 2]


def test_replayed_steps_touch_no_state_of_others(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among them states that are kept on the way, of prompts that are captured with none kept."""
    hidden = guard_memory(monkeypatch)
    with open_llm(base, adapters) as llm:
        for asked in ([prompts[0], prompts[3]], prompts):
            names = NAMES[: len(asked)]
            assert tokens(run(llm, asked, names)) == with_peft(base, adapters, asked, names)
    assert all(size > 0 for size in hidden)


def test_what_was_captured_at_the_start_replays_for_all_that_comes(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loraplex.engine.startup.cuda_warmup.warm_up_cuda", WARM_UP)
    names, prompts = ("rank12", "rank8"), [prompts[0], prompts[3]]
    with open_llm(base, adapters, max_num_seqs=2, max_num_batched_tokens=4) as llm:
        captured = RecordedGraph.captured
        outputs = run(llm, prompts, names)
    assert tokens(outputs) == with_peft(base, adapters, prompts, names)
    assert RecordedGraph.captured == captured
