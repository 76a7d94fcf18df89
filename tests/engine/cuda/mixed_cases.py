"""Steps with prompts are captured and replayed: as launched ones, and nothing of theirs lands elsewhere."""

from pathlib import Path
from typing import Any

import pytest

from loraplex import LLM, SamplingParams
from loraplex.engine.device.stream import Launch
from loraplex.engine.runner.graph_pool import GraphKey, GraphPool
from tests.checkpoints import make_adapter
from tests.engine.cuda_engine import cuda, open_llm
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

from .guard import guard_memory
from .requests import NAMES, adapters, base, greedy, prompts, run, tokens, with_peft

__all__ = ["adapters", "base", "cuda", "one_patch_a_module", "poisoned_memory", "prompts", "rounding"]
pytestmark = pytest.mark.usefixtures("cuda")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[GraphKey, bool]]:
    """Each step as it was asked for, and whether it was replayed."""
    run_graph, found = GraphPool.run, list[tuple[GraphKey, bool]]()

    def noted_run(graphs: GraphPool, key: GraphKey, launch: Launch) -> None:
        found.append((key, key in graphs._graphs))
        run_graph(graphs, key, launch)

    monkeypatch.setattr(GraphPool, "run", noted_run)
    return found


def launched(llm: LLM) -> None:
    """From now on nothing is captured."""
    runner: Any = llm.llm_engine.engine.core._in_flight._runner
    runner.graphs = runner.graphs.disabled()


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8_e4m3"])
def test_replayed_steps_answer_as_launched_ones_and_touch_nothing_of_others(
    kv_cache_dtype: str, base: Path, adapters: dict[str, Path], prompts: list[list[int]],
    steps: list[tuple[GraphKey, bool]], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What was captured for some prompts and adapters is replayed for others, of other lengths."""
    others = [prompt[2:] + prompt[:2] for prompt in prompts[::-1]]
    names = ("rank12", "rank8", "rank12", None)
    settings: dict[str, Any] = {"kv_cache_dtype": kv_cache_dtype, "enable_prefix_caching": False}
    with open_llm(base, adapters, **settings) as llm:
        launched(llm)
        expected = [tokens(run(llm, *asked)) for asked in ((prompts, NAMES), (others, names))]
    if kv_cache_dtype == "auto":
        assert expected == [with_peft(base, adapters, prompts, NAMES), with_peft(base, adapters, others, names)]
    hidden = guard_memory(monkeypatch)
    with open_llm(base, adapters, **settings) as llm:
        assert tokens(run(llm, prompts, NAMES)) == expected[0]
        steps.clear()
        assert tokens(run(llm, others, names)) == expected[1]
    mixed = [(key, replayed) for key, replayed in steps if key.mixed]
    assert len(mixed) >= 2 and all(replayed for _, replayed in mixed)
    assert all(key.sequences == 4 and key.tokens in (16, 24) and key.lora_rounds == 1 for key, _ in mixed)
    assert all(size > 0 for size in hidden)


def test_steps_of_one_size_are_not_taken_for_decodes(
    base: Path, adapters: dict[str, Path], steps: list[tuple[GraphKey, bool]]
) -> None:
    """As many tokens as sequences, padded: a prompt alone, and decodes of as many sequences."""
    asked = [[7, 8, 9], [11]], ("rank8", None)
    settings = {"max_num_batched_tokens": 4, "max_num_seqs": 4}
    with open_llm(base, adapters, **settings) as llm:
        assert tokens(run(llm, *asked)) == with_peft(base, adapters, *asked)
    with open_llm(base, adapters, **settings) as llm:
        four = [[5], [6], [9], [10]]
        assert tokens(run(llm, four, NAMES)) == with_peft(base, adapters, four, NAMES)
    sizes = {(key.tokens, key.sequences, key.mixed) for key, _ in steps}
    assert {(4, 4, True), (4, 4, False)} <= sizes


def test_heads_that_adapters_change_are_replayed_in_steps_with_prompts(
    base: Path, tmp_path: Path, prompts: list[list[int]], steps: list[tuple[GraphKey, bool]]
) -> None:
    """A step draws of other rows than the one that was captured: none, one and several of them with adapters."""
    saved = {"kinds": ("embed_tokens", "v_proj"), "modules_to_save": ["lm_head"]}
    known = {
        "saved": make_adapter(tmp_path / "saved", base, rank=4, seed=3, **saved),
        "head": make_adapter(tmp_path / "head", base, rank=4, seed=4, kinds=("lm_head", "q_proj")),
    }
    prompts = [prompt[:3] for prompt in prompts]
    said: dict[str | None, Any] = {
        name: with_peft(base, {name: folder}, prompts, [name] * 4) for name, folder in known.items()
    }
    said |= {None: with_peft(base, {}, prompts, [None] * 4)}
    rounds = [("saved", "head", None, "saved"), ("head", None, None, "saved"), (None, "saved", "head", "head")]
    with open_llm(base, known, max_loaded_adapters=4, adapter_memory=4 << 20) as llm:
        for names in rounds:
            steps.clear()
            assert tokens(run(llm, prompts, names)) == [said[name][place] for place, name in enumerate(names)]
        assert all(replayed for key, replayed in steps) and any(key.mixed and key.changed for key, _ in steps)


def test_prompts_that_are_judged_or_pooled_are_launched(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]], steps: list[tuple[GraphKey, bool]]
) -> None:
    with open_llm(base, adapters) as llm:
        judged = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
        run(llm, prompts, NAMES, judged)
        llm.embed(prompts[:2], use_tqdm=False)
        assert not steps
        run(llm, prompts, NAMES, greedy())
        assert any(key.mixed for key, _ in steps)
