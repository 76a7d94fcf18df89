"""Embeddings of every family against transformers and peft, alone and in batches with requests that generate."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch.nn.functional import cosine_similarity, normalize
from transformers import AutoModel

from loraplex import LLM, LoRARequest, PoolingParams, SamplingParams
from tests.checkpoints import make_adapter, make_checkpoint, reference_model

from .modules_file import write_modules

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"head_dim": 32}),
    "mistral-window": ("mistral", {"head_dim": 32, "sliding_window": 9}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32}),
}
"""Heads of 32 are computed in one compiled call, the others layer by layer."""
LENGTHS = (1, 3, 47, 15, 63, 31, 16)
PROMPTS = [[(7 * number + 3 * place) % 300 + 3 for place in range(length)] for number, length in enumerate(LENGTHS)]
NAMES: tuple[str | None, ...] = (None, "one", "norms", None, "one", "norms", None)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SETTINGS: dict[str, Any] = {
    "num_kv_blocks": 64, "adapter_memory": 4 << 20, "num_threads": 1, "block_size": 16, "max_num_batched_tokens": 32,
    "max_num_seqs": 16,
}  # fmt: skip
"""Prompts of more than 32 tokens are computed in several steps."""


def reference_hidden(model: Any, prompt: list[int], adapter: str | None) -> torch.Tensor:
    """[T, C] after the last norm."""
    if adapter is not None:
        model.set_adapter(adapter)
    with torch.no_grad(), nullcontext() if adapter is not None else model.disable_adapter():
        hidden: torch.Tensor = model.get_base_model().model(torch.tensor([prompt])).last_hidden_state[0]
    return hidden


@pytest.fixture(scope="module", params=CASES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, Any]]:
    family, fields = CASES[request.param]
    base = make_checkpoint(tmp_path_factory.mktemp(family), family, **fields)
    folder = tmp_path_factory.mktemp("adapters")
    adapters = {
        "one": make_adapter(folder / "one", base, rank=8),
        "norms": make_adapter(folder / "norms", base, rank=4, seed=2, modules_to_save=["norm"]),
    }
    with LLM(base, adapters, **SETTINGS) as llm:
        yield llm, reference_model(base, adapters)


def close_to(given: list[float], expected: torch.Tensor) -> bool:
    vector = torch.tensor(given)
    alike = float(cosine_similarity(vector.double(), expected.double(), dim=0))
    return alike > 0.999999 and bool(torch.allclose(vector, expected.float(), atol=1e-5, rtol=1e-4))


def test_without_modules_it_is_the_mean_scaled_to_length_one(served: tuple[LLM, Any]) -> None:
    llm, reference = served
    assert llm.info.pooling is not None and "no modules.json" in llm.info.pooling.source
    outputs = llm.embed(PROMPTS, adapter=NAMES, use_tqdm=False)
    for prompt, name, output in zip(PROMPTS, NAMES, outputs, strict=True):
        expected = normalize(reference_hidden(reference, prompt, name).mean(dim=0), dim=0)
        assert close_to(output.outputs.embedding, expected), (len(prompt), name)
        assert output.prompt_token_ids == prompt and output.adapter == name and output.num_cached_tokens == 0


@pytest.mark.parametrize("mode", ["lasttoken", "mean_tokens", "cls_token", "max_tokens"])
@pytest.mark.parametrize("normalized", [False, True])
def test_modules_of_sentence_transformers_say_how(mode: str, normalized: bool, tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base")
    write_modules(base, mode, normalized)
    adapter = make_adapter(tmp_path / "adapter", base)
    reference = reference_model(base, {"one": adapter})
    take = {
        "lasttoken": lambda it: it[-1],
        "mean_tokens": lambda it: it.mean(dim=0),
        "cls_token": lambda it: it[0],
        "max_tokens": lambda it: it.amax(dim=0),
    }
    with LLM(base, {"one": adapter}, **SETTINGS) as llm:
        outputs = llm.embed([*PROMPTS, *PROMPTS], adapter=[None] * 7 + ["one"] * 7, use_tqdm=False)
        again = llm.embed(PROMPTS, use_tqdm=False)
    for prompt, name, output in zip([*PROMPTS, *PROMPTS], [None] * 7 + ["one"] * 7, outputs, strict=True):
        expected = take[mode](reference_hidden(reference, prompt, name))
        assert close_to(output.outputs.embedding, normalize(expected, dim=0) if normalized else expected)
    # Blocks of 16: only the last token's vector may begin after what is cached.
    cached = [(len(prompt) - 1) // 16 * 16 if mode == "lasttoken" else 0 for prompt in PROMPTS]
    assert [output.num_cached_tokens for output in again] == cached
    for first, second in zip(outputs[:7], again, strict=True):
        assert torch.allclose(torch.tensor(first.outputs.embedding), torch.tensor(second.outputs.embedding), atol=1e-5)


def test_fewer_dimensions_are_the_first_ones_scaled_anew(served: tuple[LLM, Any]) -> None:
    llm, reference = served
    params = [PoolingParams(dimensions=16), PoolingParams(dimensions=16, normalize=False)]
    scaled, raw = llm.embed([PROMPTS[2]] * 2, pooling_params=params, use_tqdm=False)
    expected = reference_hidden(reference, PROMPTS[2], None).mean(dim=0)[:16]
    assert close_to(scaled.outputs.embedding, normalize(expected, dim=0)) and scaled.outputs.hidden_size == 16
    assert close_to(raw.outputs.embedding, expected)


def test_beside_requests_that_generate_nobody_is_disturbed(served: tuple[LLM, Any]) -> None:
    llm, _ = served
    engine = llm.llm_engine
    alone = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY, adapter=NAMES, use_tqdm=False)]
    vectors = [output.outputs.embedding for output in llm.embed(PROMPTS, adapter=NAMES, use_tqdm=False)]
    assert engine.info.pooling is not None
    pooling = engine.info.pooling.pooling()
    generating, pooled = [], []
    for prompt, name in zip(PROMPTS, NAMES, strict=True):
        generating.append(engine.requests.make(engine.next_id(), prompt, GREEDY, name))
        engine.start(generating[-1])
        engine.advance()
        pooled.append(engine.requests.make_pooled(engine.next_id(), prompt, pooling, adapter=name))
        engine.start(pooled[-1])
    while engine.has_unfinished_requests():
        engine.advance()
    assert [collector.output().outputs[0].token_ids for collector in generating] == alone
    for collector, vector in zip(pooled, vectors, strict=True):
        assert torch.allclose(collector.output().outputs.data, torch.tensor(vector), atol=1e-5)


def test_what_gives_way_for_lack_of_blocks_begins_its_sum_anew(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base")
    prompts = [[3 + (place * number) % 200 for place in range(60)] for number in range(1, 5)]
    with LLM(base, **(SETTINGS | {"num_kv_blocks": 64})) as llm:
        expected = [output.outputs.embedding for output in llm.embed(prompts, use_tqdm=False)]
    with LLM(base, **(SETTINGS | {"num_kv_blocks": 9})) as llm:
        engine = llm.llm_engine
        assert engine.info.pooling is not None
        growing = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
        collectors = []
        for prompt in prompts:
            engine.start(engine.requests.make(engine.next_id(), prompt[:12], growing))
            collectors.append(engine.requests.make_pooled(engine.next_id(), prompt, engine.info.pooling.pooling()))
            engine.start(collectors[-1])
        while engine.has_unfinished_requests():
            engine.advance()
        assert llm.status().preemptions > 0
    for collector, vector in zip(collectors, expected, strict=True):
        assert torch.allclose(collector.output().outputs.data, torch.tensor(vector), atol=1e-5)


def test_lora_requests_and_texts_as_in_vllm(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base")
    folder = make_adapter(tmp_path / "adapter", base)
    with LLM(base, task="embed", **SETTINGS) as llm:
        request = LoRARequest("mine", 1, str(folder))
        [output] = llm.embed({"prompt": "hello world"}, lora_request=request, use_tqdm=False)
        [same] = llm.encode("hello world", lora_request=request, pooling_task="embed", use_tqdm=False)
        ids = llm.tokenizer.encode("hello world")
    expected = normalize(reference_hidden(reference_model(base, {"mine": folder}), ids, "mine").mean(dim=0), dim=0)
    assert close_to(output.outputs.embedding, expected) and output.lora_request == request
    assert same.outputs.data.tolist() == output.outputs.embedding and same.outputs.data.shape == (64,)


def test_a_prompt_may_fill_the_whole_model_and_longer_ones_are_cut_if_asked(served: tuple[LLM, Any]) -> None:
    llm, reference = served
    longest = [3 + place % 200 for place in range(llm.info.max_model_len)]
    [whole] = llm.embed(longest, use_tqdm=False)
    assert close_to(whole.outputs.embedding, normalize(reference_hidden(reference, longest, None).mean(dim=0), dim=0))
    with pytest.raises(ValueError, match=r"prompt 1: the prompt has 257 tokens, but it may have 256"):
        llm.embed([[5], [*longest, 9]], use_tqdm=False)
    cut = PoolingParams(truncate_prompt_tokens=-1)
    for asked in ({"pooling_params": cut}, {"truncate_prompt_tokens": -1}):
        [last] = llm.embed([9, *longest], use_tqdm=False, **asked)
        assert last.outputs.embedding == pytest.approx(whole.outputs.embedding, abs=1e-6)
    both = PoolingParams(dimensions=8)
    [short] = llm.embed([9, 8, *longest[:5]], pooling_params=both, truncate_prompt_tokens=5, use_tqdm=False)
    [same] = llm.embed(longest[:5], pooling_params=both, use_tqdm=False)
    assert short.prompt_token_ids == longest[:5] and len(short.outputs.embedding) == 8
    assert short.outputs.embedding == pytest.approx(same.outputs.embedding, abs=1e-6)
    [score] = llm.score("a b c", "a b d", truncate_prompt_tokens=1, use_tqdm=False)
    ends = [llm.tokenizer.encode(text)[-1:] for text in ("a b c", "a b d")]
    left, right = (torch.tensor(output.outputs.embedding) for output in llm.embed(ends, use_tqdm=False))
    assert score.outputs.score == pytest.approx(float(left @ right), abs=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda llm: llm.embed("a", pooling_params=PoolingParams(dimensions=65)), "between 1 and 64"),
        (lambda llm: llm.embed("a", pooling_params=PoolingParams(dimensions=0)), "dimensions must be at least 1"),
        (lambda llm: llm.embed("a", truncate_prompt_tokens=0), "truncate_prompt_tokens must be at least 1"),
        (
            lambda llm: llm.embed(
                "a", truncate_prompt_tokens=3, pooling_params=PoolingParams(truncate_prompt_tokens=2)
            ),
            "of the call and of pooling_params differ",
        ),
        (lambda llm: llm.encode("a"), "needs a pooling_task"),
        (lambda llm: llm.encode("a", pooling_task="paint"), "'paint' is not supported"),
        (lambda llm: llm.embed("a", adapter="nobody"), "no adapter 'nobody'"),
        (lambda llm: llm.embed([[5], []]), "prompt 1: "),
    ],
)
def test_what_cannot_be_is_refused_in_words(served: tuple[LLM, Any], make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(served[0])


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ([{"type": "sentence_transformers.models.Transformer"}, {"type": "x.Router"}], "module 'Router'"),
        ([{"type": "sentence_transformers.models.Transformer"}], "has no Pooling module"),
        ({}, "must hold a list of modules"),
    ],
)
def test_a_model_that_makes_no_embeddings_says_why_and_still_generates(
    modules: Any, words: str, tmp_path: Path
) -> None:
    base = make_checkpoint(tmp_path / "base")
    (base / "modules.json").write_text(json.dumps(modules))
    with LLM(base, **SETTINGS) as llm:
        with pytest.raises(ValueError, match=f"makes no embeddings: .*{words}"):
            llm.embed("a", use_tqdm=False)
        assert llm.generate("a", GREEDY, use_tqdm=False)[0].outputs[0].token_ids


@pytest.mark.parametrize("mode", ["mean_sqrt_len_tokens", "lasttoken"])
def test_only_one_known_pooling_is_taken(mode: str, tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base")
    write_modules(base, mode, pooling_mode_mean_sqrt_len_tokens=True)
    with LLM(base, **SETTINGS) as llm, pytest.raises(ValueError, match=r"pooling_mode_mean_sqrt_.* is not supported"):
        llm.embed("a", use_tqdm=False)


def test_adapters_trained_on_a_model_without_its_head(tmp_path: Path) -> None:
    """As sentence-transformers trains them: PEFT's names then lack a `model`."""
    base = make_checkpoint(tmp_path / "base", "qwen3", head_dim=32)
    config = LoraConfig(
        r=4,
        target_modules=["q_proj", "down_proj"],
        task_type="FEATURE_EXTRACTION",
        rank_pattern={"layers.0.self_attn.q_proj": 2},
        modules_to_save=["norm"],
    )
    adapted = get_peft_model(AutoModel.from_pretrained(base, dtype=torch.float32), config).eval()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(4)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
            elif "modules_to_save" in name:
                parameter.uniform_(0.5, 1.5)
    adapted.save_pretrained(tmp_path / "adapter")
    assert any(
        ".model.layers." in name and ".model.model." not in name
        for name in load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    )
    with LLM(base, {"one": tmp_path / "adapter"}, **SETTINGS) as llm:
        outputs = llm.embed(PROMPTS, adapter="one", use_tqdm=False)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        with torch.no_grad():
            hidden = adapted(torch.tensor([prompt])).last_hidden_state[0]
        assert close_to(output.outputs.embedding, normalize(hidden.mean(dim=0), dim=0)), len(prompt)
