"""The engine on CUDA's path against transformers and peft, and against itself on the CPU, in triton's interpreter:
test_cuda_interpreted.py runs this by itself.
"""

import re
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex import LLM, SamplingParams
from loraplex.engine import cuda_runner, cuda_warmup, gpu_profile
from loraplex.engine.attention.cuda import CudaAttention
from loraplex.engine.calibrate_kv import Reader, calibrate_kv
from loraplex.engine.config import EngineConfig
from loraplex.engine.cuda_runner import CudaRunner
from loraplex.engine.graph_pool import GraphKey, GraphPool, size_ladder
from loraplex.engine.model.decoder import Decoder, DecoderLoader
from loraplex.engine.outputs import RequestOutput
from loraplex.engine.stream import Launch
from loraplex.engine.structured_outputs import StructuredOutputs
from loraplex.lora import cuda_limits
from loraplex.lora.kernels import own_logits
from tests.checkpoints import make_adapter, make_checkpoint, make_ia3, reference_model
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

from .cuda_engine import TINY, cuda, open_llm
from .paper_gauge import PaperGauge
from .recorded_graph import RecordedGraph
from .test_static_scales import SCHEME, scale_tensors, with_scales

__all__ = ["cuda", "one_patch_a_module", "poisoned_memory", "rounding"]
pytestmark = pytest.mark.usefixtures("cuda")

WARM_UP, RUN_LARGEST = cuda_warmup.warm_up_cuda, cuda_warmup.run_largest
RUN_LARGEST_DECODE = cuda_warmup.run_largest_decode
LENGTHS = (3, 19, 9, 5)
NAMES = (None, "rank8", "rank12", "rank8")
NEW_TOKENS = 3


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"), "qwen2", num_hidden_layers=2, **TINY)


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    some = ("k_proj", "o_proj", "up_proj")
    return {
        "rank8": make_adapter(folder / "rank8", base, rank=8, seed=1),
        "rank12": make_adapter(folder / "rank12", base, rank=12, seed=2, kinds=some),
    }


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 300, (length,), generator=generator).tolist() for length in LENGTHS]


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, **fields)


def run(llm: LLM, prompts: list[list[int]], names: Any, params: Any = None) -> list[RequestOutput]:
    return llm.generate(prompts, params or greedy(), list(names), use_tqdm=False)


def tokens(outputs: list[RequestOutput]) -> list[list[list[int]]]:
    return [[choice.token_ids for choice in output.outputs] for output in outputs]


@torch.inference_mode()
def with_peft(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]], names: Any, vocab_size: int | None = None
) -> list[list[list[int]]]:
    model, found = reference_model(base, adapters, vocab_size), []
    for prompt, name in zip(prompts, names, strict=True):
        if name is not None:
            model.set_adapter(name)
        ids = list(prompt)
        with model.disable_adapter() if name is None and adapters else nullcontext():
            for _ in range(NEW_TOKENS):
                ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        found.append([ids[len(prompt) :]])
    return found


def test_a_mixed_batch_equals_transformers_and_peft(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]]
) -> None:
    """The base and two adapters of different ranks, chunks of prompts beside decodes, and all of it again from the
    prefix cache. Decodes are captured by fewer sequences with shorter contexts than they are replayed for."""
    expected = with_peft(base, adapters, prompts, NAMES)
    with open_llm(base, adapters) as llm:
        assert llm.info.compute == "cuda kernels on cpu, float32 weights, float32 arithmetic"
        assert tokens(run(llm, prompts, NAMES)) == expected
        captured = RecordedGraph.captured
        again = run(llm, prompts, NAMES)
        status = llm.status()
        assert status.device_seconds is not None and 0 < status.device_seconds < status.step_seconds
    assert tokens(again) == expected
    assert [output.num_cached_tokens for output in again] == [(length - 1) // 16 * 16 for length in LENGTHS]
    assert captured > 0 and RecordedGraph.replayed > 0


def test_what_was_captured_at_the_start_replays_for_all_that_comes(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warm-up knows one adapter without ranks and contexts of one token."""
    monkeypatch.setattr(cuda_warmup, "warm_up_cuda", WARM_UP)
    names, prompts = ("rank12", "rank8"), [prompts[0], prompts[3]]
    with open_llm(base, adapters, max_num_seqs=2, max_num_batched_tokens=4) as llm:
        captured = RecordedGraph.captured
        assert captured == 4 * len(size_ladder(2))
        outputs = run(llm, prompts, names)
    assert tokens(outputs) == with_peft(base, adapters, prompts, names)
    assert RecordedGraph.captured == captured and RecordedGraph.replayed >= NEW_TOKENS - 1


MB = 10**6


def test_a_card_is_measured_and_split_as_the_engine_starts(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights as the load takes them, the largest step as it runs; adapters get their share of the rest, and the KV
    cache what remains. No rule of the host's memory is asked."""
    gauge, counts, judged = PaperGauge(total=50 * MB), [], list[int]()
    load, submit, end = DecoderLoader.load, CudaRunner.submit, Decoder.end

    def loading(loader: DecoderLoader, longest: int) -> Decoder:
        gauge.take(8 * MB)
        gauge.give_back(3 * MB)
        return load(loader, longest)

    def submitting(runner: CudaRunner, plan: Any) -> Any:
        counts.append([item.count for item in plan.scheduled])
        gauge.take(2 * MB)
        handle = submit(runner, plan)
        gauge.give_back(2 * MB)
        return handle

    def ending(decoder: Decoder, *parts: Any) -> torch.Tensor:
        logits = end(decoder, *parts)
        judged.append(len(logits))
        return logits

    monkeypatch.setattr(gpu_profile, "open_gauge", lambda device: gauge)
    monkeypatch.setattr(cuda_warmup, "run_largest", RUN_LARGEST)
    monkeypatch.setattr(cuda_warmup, "run_largest_decode", RUN_LARGEST_DECODE)
    monkeypatch.setattr(cuda_runner, "MOST_JUDGED", 4)
    monkeypatch.setattr(Decoder, "end", ending)
    monkeypatch.setattr(DecoderLoader, "load", loading)
    monkeypatch.setattr(CudaRunner, "submit", submitting)
    settings = {"num_kv_blocks": None, "adapter_memory_share": 0.25, "max_num_seqs": 2, "max_num_batched_tokens": 8}
    with open_llm(base, {}, **settings) as llm:
        assert counts == [[8], [7, 1], [1, 1]], "the largest steps, before there is a cache"
        assert RecordedGraph.captured == 0
        assert judged == [1, 4, 2, 2, 2], "logits of the last token; of six more of the second prompt, some at a time"
        info, left = llm.info, 45 * MB - 5 * MB - 4 * MB - 2 * MB - 12 * 2 * 400_000
        assert info.device_memory is not None
        assert (info.device_memory.total, info.device_memory.allowed) == (50 * MB, 45 * MB)
        assert (info.device_memory.activations, info.device_memory.graphs) == (4 * MB, 12 * 2 * 400_000)
        assert info.device_memory.graph_pool == 2 * MB
        assert info.adapter_memory == left // 4
        assert info.num_blocks + 1 == (left - left // 4) // (2 * 2 * 16 * 2 * 16 * 4)
        engine = llm._opened()
        assert engine.cache.cache_bytes() == info.kv_cache_bytes == (info.num_blocks + 1) * 2 * 2 * 16 * 2 * 16 * 4
        assert 0 <= info.adapter_memory - engine.adapters.table.arena.nbytes < 128


@pytest.mark.parametrize(
    ("owner", "part", "words"),
    [
        (DecoderLoader, "load", "as the weights were loaded.* set quantization to int4 or fp8"),
        (cuda_warmup, "run_largest", "as its largest steps were tried.* lower max_num_batched_tokens, now 24; low"),
        (CudaAttention, "copy_blocks", "as steps were captured.* lower gpu_memory_utilization, now 0.9; lower max_num"),
    ],
)
def test_a_card_that_is_too_small_says_what_to_change(
    owner: Any, part: str, words: str, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(owner, part, fail)
    monkeypatch.setattr(cuda_warmup, "warm_up_cuda", lambda runner, *rest: runner.cache.copy_blocks([(0, 0)]))
    with pytest.raises(ValueError, match=words):
        open_llm(base, {})


def test_memory_that_runs_out_in_a_capture_says_what_to_change(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(cuda_warmup, "warm_up_cuda", WARM_UP)
    monkeypatch.setattr(RecordedGraph, "__init__", fail)
    words = "as steps were captured.* lower gpu_memory_utilization, now 0.9; lower max_num_seqs, now 1;"
    with pytest.raises(ValueError, match=words):
        open_llm(base, {}, max_num_seqs=1, max_num_batched_tokens=4)


def test_a_card_without_room_for_the_cache_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_profile, "open_gauge", lambda device: PaperGauge(total=17 * MB))
    with pytest.raises(ValueError, match=r"a card has too little memory .* CUDA graphs 0\.01 GB.* lower max_num_seqs"):
        open_llm(base, {})


def on_both(base: Path, adapters: dict[str, Path], **settings: Any) -> Iterator[LLM]:
    for device in ("cpu", "cuda"):
        with open_llm(base, adapters, device=device, **settings) as llm:
            yield llm


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
    monkeypatch.setattr(own_logits, "ROW_PROGRAMS", 3)
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
    pool = llm._opened().adapters
    for residency in pool.statuses():
        pool.load(residency.digest)
        while not pool.resident(residency.digest):
            pool.poll()
            time.sleep(0.001)


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
            assert [known for _, known in steps] == [replayed, *[True] * (NEW_TOKENS - 2)], names
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


def test_keys_and_values_in_8_bits_are_the_cpus(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]]
) -> None:
    settings = {"kv_cache_dtype": "fp8_e4m3"}
    one, other = [tokens(run(llm, prompts[1:3], NAMES[1:3])) for llm in on_both(base, adapters, **settings)]
    assert other == one


def test_what_static_scales_clip_is_counted(prompts: list[list[int]], tmp_path: Path) -> None:
    scaled = with_scales(tmp_path, scale_tensors(), SCHEME)
    one, other = [
        (tokens(run(llm, prompts[:2], [None] * 2)), llm.status().base_clipping)
        for llm in on_both(scaled, {}, kv_cache_dtype="fp8_e4m3")
    ]
    assert other == one and one[1] is not None and one[1].clipped_values > 0


def test_draws_and_log_probabilities_are_the_cpus(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]]
) -> None:
    shared = {"max_tokens": 3, "ignore_eos": True}
    params = [
        SamplingParams(temperature=0.8, top_p=0.9, seed=1, n=2, logprobs=2, **shared),
        SamplingParams(temperature=1.2, top_k=9, seed=2, frequency_penalty=0.5, **shared),
        SamplingParams(temperature=0.0, prompt_logprobs=1, logit_bias={5: 3.0}, **shared),
        SamplingParams(temperature=0.7, min_p=0.02, seed=3, min_tokens=3, stop_token_ids=[9], **shared),
    ]
    one, other = [run(llm, prompts, NAMES, params) for llm in on_both(base, adapters)]
    assert tokens(other) == tokens(one)
    assert told(other) == pytest.approx(told(one), abs=1e-4)


def test_constrained_answers_are_the_cpus_and_their_neighbours_are_left_alone(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]]
) -> None:
    """Steps overlap: a constrained choice waits for its last token, the others do not."""
    form = StructuredOutputs(regex="[a-z]{2}[0-9]{2}")
    params = [
        SamplingParams(temperature=0.0, max_tokens=9, structured_outputs=form),
        SamplingParams(
            temperature=1.0, seed=4, max_tokens=9, logprobs=1, presence_penalty=0.3, structured_outputs=form
        ),
        SamplingParams(temperature=1.0, seed=5, max_tokens=6, ignore_eos=True),
        SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True),
    ]
    one, other = [run(llm, prompts, NAMES, params) for llm in on_both(base, adapters)]
    assert tokens(other) == tokens(one)
    # Random prompts may end within a character, which then comes first.
    assert all(re.search("[a-z]{2}[0-9]{2}$", output.outputs[0].text) for output in other[:2])
    with open_llm(base, adapters) as alone:
        assert tokens(run(alone, prompts[2:], NAMES[2:], params[2:])) == tokens(other[2:])


def told(outputs: list[RequestOutput]) -> list[float]:
    entries = [entry for output in outputs for entry in output.prompt_logprobs or ()]
    entries += [entry for output in outputs for choice in output.outputs for entry in choice.logprobs or ()]
    return [number.logprob for entry in entries if entry for _, number in sorted(entry.items())]


def test_bfloat16_and_int4_are_close_to_the_cpus(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]]
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    settings = {"dtype": "bfloat16", "quantization": "int4"}
    one, other = [
        torch.tensor(told(run(llm, prompts[2:], NAMES[2:], params))) for llm in on_both(base, adapters, **settings)
    ]
    assert (other - one).abs().mean() < 0.03 and (other - one).abs().max() < 0.2


def test_an_adapter_with_more_tokens_than_the_sampler_has_room_for_is_refused_in_words(
    base: Path, prompts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_limits, "MOST_ADDED", 3)
    grown = make_adapter(tmp_path / "grown", base, rank=4, kinds=("q_proj",), vocab_size=324)
    words = "has 324 tokens with the adapter and 320 without; on CUDA it may have 323: serve it on a CPU"
    with open_llm(base, {"grown": grown}) as llm, pytest.raises(RuntimeError, match=words):
        run(llm, prompts[:1], ["grown"])


def test_what_reads_keys_on_a_cpu_says_so(base: Path) -> None:
    config = EngineConfig(model=str(base), kv_cache_dtype="int8")
    with pytest.raises(ValueError, match=r"calibrating the KV cache on cuda kernels .* use device cpu"):
        calibrate_kv(config, [Reader("base")], None, 100)
