"""Every kind of adapter on CUDA's path against peft, and against the CPU."""

import time
from pathlib import Path
from typing import Any

import pytest

from loraplex import LLM
from loraplex.engine.device.stream import Launch
from loraplex.engine.runner import cuda_runner
from loraplex.engine.runner.graph_pool import GraphKey, GraphPool
from loraplex.lora.residency import cuda_limits
from tests.cards import use_processors
from tests.checkpoints import make_adapter, make_checkpoint, make_ia3
from tests.engine.cuda_engine import TINY, cuda, open_llm
from tests.engine.recorded_graph import RecordedGraph
from tests.engine.stale_use import adapters_in, check_a_slot_given_away_fails_its_user_alone
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

from .requests import NEW_TOKENS, adapters, base, greedy, on_both, prompts, run, tokens, told, with_peft

__all__ = ["adapters", "base", "cuda", "one_patch_a_module", "poisoned_memory", "prompts", "rounding"]
pytestmark = pytest.mark.usefixtures("cuda")


def test_adapters_that_scale_shift_begin_late_or_are_summed_are_the_cpus(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]], tmp_path: Path
) -> None:
    dora, late = {"use_dora": True, "bias": "all"}, {"alora_invocation_tokens": [310]}
    more = {
        "dora": make_adapter(tmp_path / "dora", base, rank=4, seed=3, kinds=("q_proj", "down_proj"), **dora),
        "ia3": make_ia3(tmp_path / "ia3", base, seed=5),
        "late": make_adapter(tmp_path / "late", base, rank=4, seed=6, **late),
    }
    prompts = [*prompts[:3], [*prompts[3], 310, 7, 8]]
    names = ("dora", "ia3", {"rank8": 0.5, "rank12": -0.7}, "late")
    settings = {"max_loaded_adapters": 5, "adapter_memory": 2 << 20}
    one, other = [tokens(run(llm, prompts, names)) for llm in on_both(base, adapters | more, **settings)]
    assert other == one


def test_adapters_that_change_norms_embedding_and_head_are_pefts_and_the_cpus(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]], tmp_path: Path
) -> None:
    """Alone and in a sum, in prompts and in graphs, beside one that changes none of them."""
    ends, norms = {"kinds": ("embed_tokens", "lm_head", "v_proj")}, ["norm", "layers.1.input_layernorm"]
    more = {
        "ends": make_adapter(tmp_path / "ends", base, rank=11, seed=3, **ends),
        "dora": make_adapter(tmp_path / "dora", base, rank=4, seed=4, use_dora=True, **ends),
        "norms": make_adapter(tmp_path / "norms", base, rank=4, seed=5, kinds=("q_proj",), modules_to_save=norms),
    }
    names = ("ends", "norms", "dora", {"rank8": 0.5, "ends": -0.7})
    settings = {"max_loaded_adapters": 4, "adapter_memory": 4 << 20}
    one, other = [tokens(run(llm, prompts, names)) for llm in on_both(base, adapters | more, **settings)]
    assert other == one
    assert other[:3] == with_peft(base, more, prompts[:3], names[:3])
    assert RecordedGraph.replayed > 0


def test_adapters_with_tokens_of_their_own_are_pefts_and_the_cpus(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained tokens, a whole head beside an embedding, and vocabularies larger and smaller than the base's, beside an
    adapter and a base that have none of it."""
    use_processors(monkeypatch, 3)
    monkeypatch.setattr(cuda_runner, "MOST_JUDGED", 4)
    settings: dict[str, dict[str, Any]] = {
        "trained": {"kinds": ("q_proj",), "trainable_token_indices": [7, 300, 11]},
        "saved": {"kinds": ("embed_tokens", "v_proj"), "modules_to_save": ["lm_head"]},
        "grown": {"kinds": ("q_proj",), "vocab_size": 325},
        "fewer": {"kinds": ("q_proj",), "vocab_size": 310},
    }
    more = {
        name: make_adapter(tmp_path / name, base, rank=4, seed=seed, **fields)
        for seed, (name, fields) in enumerate(settings.items(), 3)
    }
    names = ("trained", "saved", "grown", "fewer", "rank12", None)
    prompts = [[*prompts[place % 4][:6], 7] for place in range(len(names))]
    prompts[2] = [9, 324, 5, 320, 321]
    share = {"max_loaded_adapters": 5, "adapter_memory": 4 << 20, "max_num_seqs": 8, "max_num_batched_tokens": 48}
    # Tokens that only it knows are likely in a model that says so.
    bias = [greedy(logit_bias={322: 40.0}) if name == "grown" else greedy(prompt_logprobs=1) for name in names]
    found = []
    for llm in on_both(base, adapters | more, **share):
        found.append((tokens(run(llm, prompts, names)), run(llm, prompts, names, bias)))
    (one, told_one), (other, told_other) = found
    assert other == one and tokens(told_other) == tokens(told_one)
    assert told(told_other) == pytest.approx(told(told_one), abs=1e-4)
    assert tokens(told_other)[2] == [[322] * NEW_TOKENS]
    for place, name in enumerate(names):
        size = settings.get(name or "", {}).get("vocab_size")
        own = {name: (adapters | more)[name]} if name else {}
        assert other[place : place + 1] == with_peft(base, own, prompts[place : place + 1], [name], size), name
    assert RecordedGraph.replayed > 0


def load_all(llm: LLM) -> None:
    """So that what is asked for together is decoded together."""
    pool = llm.llm_engine.engine.adapters
    for residency in pool.statuses():
        pool.load(residency.digest)
        while not pool.resident(residency.digest):
            pool.poll()
            time.sleep(0.001)


def test_a_slot_given_away_fails_its_user_alone(base: Path, tmp_path: Path) -> None:
    """With a step in flight, and decodes that are replayed."""
    with open_llm(base, adapters_in(tmp_path, base), max_loaded_adapters=2) as llm:
        assert llm.llm_engine.engine.core._in_flight._runner.depth == 2
        check_a_slot_given_away_fails_its_user_alone(llm)
    assert RecordedGraph.replayed > 0


def test_a_step_captured_for_the_rows_of_one_adapter_replays_for_those_of_others(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured for a head that was saved whole; replayed for that, another vocabulary, trained tokens and the base side
    by side. A step without any of it is captured before, and replayed after."""
    settings: dict[str, dict[str, Any]] = {
        "saved": {"kinds": ("embed_tokens", "v_proj"), "modules_to_save": ["lm_head"]},
        "grown": {"kinds": ("q_proj",), "vocab_size": 325},
        "trained": {"kinds": ("v_proj",), "trainable_token_indices": [*range(0, 320, 2), 7]},
    }
    known = {"rank12": adapters["rank12"]} | {
        name: make_adapter(tmp_path / name, base, rank=4, seed=seed, **fields)
        for seed, (name, fields) in enumerate(settings.items(), 3)
    }
    prompts = [[*prompt[:3], 7] for prompt in prompts]
    said = {
        name: with_peft(base, {name: folder}, prompts, [name] * 4, settings.get(name, {}).get("vocab_size"))
        for name, folder in known.items()
    }
    said |= {None: with_peft(base, {}, prompts, [None] * 4)}
    assert any(token % 2 == 0 for [output] in said["trained"] for token in output), "no decode reads a row of its own"
    run_graph, steps = GraphPool.run, list[tuple[GraphKey, bool]]()

    def noted_run(graphs: GraphPool, key: GraphKey, launch: Launch) -> None:
        steps.append((key, key in graphs._graphs))
        run_graph(graphs, key, launch)

    monkeypatch.setattr(GraphPool, "run", noted_run)
    with open_llm(base, known, max_loaded_adapters=4, adapter_memory=4 << 20, max_num_batched_tokens=48) as llm:
        load_all(llm)

        def keys(*names: str | None, replayed: bool) -> set[GraphKey]:
            steps.clear()
            expected = [said[name][place] for place, name in enumerate(names)]
            assert tokens(run(llm, prompts, names)) == expected, names
            assert [known for _, known in steps] == [replayed, replayed, *[True] * (NEW_TOKENS - 2)], names
            return {key for key, _ in steps}

        plain = keys("rank12", None, "rank12", None, replayed=False)
        own = keys("saved", "saved", "saved", "saved", replayed=False)
        assert own != plain and keys("grown", "trained", None, "saved", replayed=True) == own
        assert keys(None, "rank12", "rank12", "rank12", replayed=True) == plain


def test_norms_of_heads_that_adapters_bring_are_pefts_and_the_cpus(tmp_path: Path, prompts: list[list[int]]) -> None:
    base = make_checkpoint(tmp_path / "base", "qwen3", num_hidden_layers=2, **TINY)
    saved = {"kinds": ("v_proj",), "modules_to_save": ["q_norm", "layers.1.self_attn.k_norm"]}
    adapters = {"saved": make_adapter(tmp_path / "saved", base, rank=4, seed=3, **saved)}
    names = ("saved", None)
    one, other = [tokens(run(llm, prompts[2:], names)) for llm in on_both(base, adapters)]
    assert other == one == with_peft(base, adapters, prompts[2:], names)


def test_an_adapter_with_more_tokens_than_the_sampler_has_room_for_is_refused_in_words(
    base: Path, prompts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_limits, "MOST_ADDED", 3)
    grown = make_adapter(tmp_path / "grown", base, rank=4, kinds=("q_proj",), vocab_size=324)
    words = "has 324 tokens with the adapter and 320 without; on CUDA it may have 323: serve it on a CPU"
    with open_llm(base, {"grown": grown}) as llm, pytest.raises(RuntimeError, match=words):
        run(llm, prompts[:1], ["grown"])
