"""The engine on CUDA's path against transformers and peft, and against itself on the CPU, in triton's interpreter:
test_cuda_interpreted.py runs this by itself.
"""

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex import LLM, SamplingParams
from loraplex.engine import cuda_runner, cuda_warmup, gpu_profile
from loraplex.engine.adapter_files import prepare_adapter
from loraplex.engine.attention.cuda import CudaAttention
from loraplex.engine.calibrate_kv import Reader, calibrate_kv
from loraplex.engine.certificate import CertifyJob
from loraplex.engine.certify.inputs import open_adapter
from loraplex.engine.certify.on_cuda import OnCuda
from loraplex.engine.certify.prompts import Prompt
from loraplex.engine.certify.served import ServedModel, load_adapter, make_batches
from loraplex.engine.cuda_runner import CudaRunner
from loraplex.engine.device import choose_device
from loraplex.engine.graph_pool import GraphKey, GraphPool, size_ladder
from loraplex.engine.model.config import ModelConfig, base_signature
from loraplex.engine.model.decoder import Decoder, DecoderLoader
from loraplex.engine.outputs import RequestOutput
from loraplex.engine.stream import Launch
from loraplex.engine.structured_outputs import StructuredOutputs
from loraplex.lora import cuda_limits
from loraplex.lora.kernels import own_logits
from loraplex.quant.cuda_packed import CudaPackedLinear
from loraplex.quant.kernels.cuda import cast
from tests.checkpoints import make_adapter, make_checkpoint, make_ia3, reference_model
from tests.quant.made_checkpoints import Case, groups, layers, make_quantized, scheme
from tests.quant.made_formats import Made, float8
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

from .cuda_engine import TINY, cuda, open_llm, small_config
from .paper_gauge import PaperGauge
from .recorded_graph import RecordedGraph
from .stale_use import adapters_in, check_a_slot_given_away_fails_its_user_alone
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
        runner: Any = llm._opened().core._in_flight._runner
        assert runner.graphs.serves, "memory that runs out in a capture costs no step from now on"
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


def test_a_slot_given_away_fails_its_user_alone(base: Path, tmp_path: Path) -> None:
    """With a step in flight, and decodes that are replayed."""
    with open_llm(base, adapters_in(tmp_path, base), max_loaded_adapters=2) as llm:
        assert llm._opened().core._in_flight._runner.depth == 2
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


TOKEN = {"type": "float", "num_bits": 8, "strategy": "token", "symmetric": True, "dynamic": True}
CLIPPING = 2e-3
"""A static scale far too small: inputs beyond 0.9 are clipped."""


def clipped(random: Any, outputs: int, inputs: int) -> Made:
    made = float8(static=True)(random, outputs, inputs)
    made.tensors["input_scale"].fill_(CLIPPING)
    return made


FLOAT8_CASES = {
    None: Case(groups("float-quantized", scheme("float", 8, "channel", inputs=TOKEN)), layers(float8((1, None)))),
    CLIPPING: Case({"quant_method": "fp8", "activation_scheme": "static"}, layers(clipped)),
}


def in_float8(x: torch.Tensor, scale: float | None) -> torch.Tensor:
    """What is left of x in float8, with its rows' own scales or one."""
    scales = x.abs().amax(-1, keepdim=True) / 448 if scale is None else torch.tensor(scale)
    return (x / scales).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scales


@torch.inference_mode()
def read_by_float8_linears(
    floats: Path, adapter: Path, prompt: list[int], cast: Any, adapter_reads_it_too: bool = False
) -> torch.Tensor:
    """Log-probabilities of the prompt's tokens but the first, in float32, where linears of the base multiply `cast` of
    their inputs."""
    model = reference_model(floats, {"own": adapter})
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name.endswith("base_layer"):
            module.register_forward_pre_hook(lambda module, inputs: (cast(inputs[0]),))
        if adapter_reads_it_too and "lora_A." in name:
            module.register_forward_pre_hook(lambda module, inputs: (cast(inputs[0]),))
    found = model(input_ids=torch.tensor([prompt])).logits[0].log_softmax(-1)
    return found[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]


@pytest.mark.parametrize("scale", FLOAT8_CASES, ids=str)
@torch.no_grad()
def test_linears_of_the_base_read_float8_and_adapters_what_was_before_it(
    scale: float | None, tmp_path: Path, prompts: list[list[int]]
) -> None:
    """One norm with its linears, and a gate with its own: against floats out of float8, in float32, with PEFT."""
    base, floats = make_quantized(tmp_path, replace(FLOAT8_CASES[scale], settings={"num_hidden_layers": 1, **TINY}))
    adapter = make_adapter(tmp_path / "rank8", base=floats, rank=8)
    config = small_config(base, dtype="bfloat16")
    served = ServedModel(base, choose_device(config, ModelConfig.from_folder(base)), 64)
    with ExitStack() as scratch:
        opened = open_adapter(CertifyJob(config, adapter=str(adapter)), base_signature(base), scratch)
        assert opened is not None
        table = load_adapter(served, opened, torch.bfloat16)
    prompt, drawn = max(prompts, key=len), torch.Generator().manual_seed(5)
    batch = OnCuda(torch.device("cpu")).place(make_batches([Prompt(prompt)], table)[0])
    layer, x = served.layer(0), torch.randn(len(prompt), 32, generator=drawn).bfloat16()
    qkv, down = layer.attention.qkv, layer.mlp.down
    assert down.casts is not None and down.casts[1] == pytest.approx(scale)
    normed = layer._norm(layer.input_norm, "input_layernorm", qkv, x, torch.zeros_like(x), batch)
    product = down.casts[0].multiply_gate(2 * torch.randn(len(prompt), 96, generator=drawn).bfloat16(), down.casts[1])
    modules = dict(reference_model(floats, {"own": adapter}).named_modules())
    for linear, (inputs, rows) in ((qkv, normed), (down, product)):
        own = [next(m for name, m in modules.items() if name.endswith(f".{kind}")) for kind in linear.kinds]
        exact, narrow = inputs.float(), in_float8(inputs.float(), scale)
        found = linear.apply(inputs, batch, rows).float()

        def error(read: torch.Tensor, adapter_reads: torch.Tensor, own: Any = own, found: Any = found) -> float:
            changes = [m.scaling["own"] * m.lora_B["own"](m.lora_A["own"](adapter_reads)) for m in own]
            wanted = [m.base_layer(read) + change for m, change in zip(own, changes, strict=True)]
            return float((found - torch.cat(wanted, 1)).abs().mean())

        right, others = error(narrow, exact), (error(exact, exact), error(narrow, narrow))
        assert right < 0.6 * min(others), (linear.kinds, right, others)


def test_float8_linears_multiply_activations_in_float8_and_adapters_read_them_as_they_were(
    tmp_path: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the weights as floats times the inputs as floats, both out of float8, in float32. Only what attention
    gives is cast by itself, all else on the way. Decodes are captured."""
    base, floats = make_quantized(tmp_path, replace(FLOAT8_CASES[CLIPPING], settings={"num_hidden_layers": 2, **TINY}))
    adapter = make_adapter(tmp_path / "rank8", base=floats, rank=8)
    casts, cast_rows = [], cast.cast_rows
    monkeypatch.setattr(cast, "cast_rows", lambda *rows: casts.append(rows) or cast_rows(*rows))
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, prompt_logprobs=0)
    with open_llm(base, {"rank8": adapter}, dtype="bfloat16") as llm:
        assert llm.info.arithmetic == "cuda kernels on cpu; float8 linears multiply activations cast to float8"
        found = torch.tensor(told(run(llm, prompts[1:2], ["rank8"], params))[: LENGTHS[1] - 1])
    assert {rows[0].shape[1] for rows in casts} == {64}, "what attention gives, and neither norms nor the gate"

    def error(*how: Any) -> float:
        return float((found - read_by_float8_linears(floats, adapter, prompts[1], *how)).abs().mean())

    right, uncast = error(lambda x: in_float8(x, CLIPPING)), error(lambda x: x)
    by_adapters_too = error(lambda x: in_float8(x, CLIPPING), True)
    assert right < uncast / 2 and right < by_adapters_too / 2
    assert RecordedGraph.replayed > 0


def test_packed_weights_that_were_kept_answer_the_same(
    base: Path, adapters: dict[str, Path], prompts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"quantization": "int4", "dtype": "bfloat16", "weights_cache": str(tmp_path / "cache")}
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, prompt_logprobs=0)
    answers = []
    for _ in range(2):
        with open_llm(base, adapters, **settings) as llm:
            answers.append(told(run(llm, prompts[:2], NAMES[:2], params)))
        monkeypatch.setattr(CudaPackedLinear, "finish", lambda method: pytest.fail("it was packed again"))
    assert answers[0] == answers[1] and answers[0]


def test_an_adapter_with_more_tokens_than_the_sampler_has_room_for_is_refused_in_words(
    base: Path, prompts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_limits, "MOST_ADDED", 3)
    grown = make_adapter(tmp_path / "grown", base, rank=4, kinds=("q_proj",), vocab_size=324)
    words = "has 324 tokens with the adapter and 320 without; on CUDA it may have 323: serve it on a CPU"
    with open_llm(base, {"grown": grown}) as llm, pytest.raises(RuntimeError, match=words):
        run(llm, prompts[:1], ["grown"])


def test_static_scales_are_the_cpus(base: Path, adapters: dict[str, Path], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 30)
    with ExitStack() as scratch:
        files = prepare_adapter("rank8", adapters["rank8"], base_signature(base), scratch)
    readers = [Reader("base"), Reader("rank8", files.manifest.digest, str(adapters["rank8"]))]
    one, other = (
        calibrate_kv(small_config(base, device=device, kv_cache_dtype="fp8_e4m3"), readers, text, 128).scales
        for device in ("cpu", "cuda")
    )
    torch.testing.assert_close(other, one, rtol=2**-7, atol=0)  # they are rounded to bfloat16, of other last bits
