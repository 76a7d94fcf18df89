"""The engine against transformers and peft: every family, adapters of ranks 1 to 64 in one batch with the base."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex import LLM, SamplingParams
from loraplex.engine.offline.outputs import RequestOutput
from loraplex.engine.sampling.sampler import Sampled, Sampler, SampleRow
from tests.checkpoints import make_adapter, make_checkpoint, reference_model

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-gqa2": ("llama", {}),
    "llama-gqa4-padded-heads": ("llama", {"head_dim": 56, "num_key_value_heads": 1}),
    "llama-biases-tied-llama3-rope": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE},
    ),
    "llama-linear-rope": (
        "llama",
        {"head_dim": 32, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}},
    ),
    "mistral-window-9": ("mistral", {"head_dim": 32, "sliding_window": 9}),
    "ministral-window-in-some-layers": (
        "ministral",
        {"head_dim": 32, "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "qwen2-gqa7": ("qwen2", {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 56}),
    "qwen2-window-in-some-layers-yarn": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "rope_parameters": YARN_ROPE},
    ),
    "qwen3-gqa1-padded-heads": ("qwen3", {"head_dim": 56, "num_key_value_heads": 4}),
}
"""Heads of 32 are computed in one compiled call, the others layer by layer. Heads and groups are of sizes that other
tests have: each new mixture compiles for half a minute."""
ADAPTERS: dict[str, dict[str, Any]] = {
    "rank1": {"rank": 1, "kinds": ("q_proj", "v_proj")},
    "rank8": {"rank": 8},
    "rank12": {"rank": 12, "kinds": ("k_proj", "o_proj", "down_proj"), "alpha": 5.0},
    "rank64": {"rank": 64, "use_rslora": True, "alpha": 8.0},
}
LENGTHS = (3, 47, 15, 63, 31, 16, 1)
NAMES: tuple[str | None, ...] = (None, "rank1", "rank8", "rank64", None, "rank12", "rank8")
NEW_TOKENS = 24
TOLERANCE = 1e-4


@dataclass
class Case:
    base: Path
    adapters: dict[str, Path]
    prompts: list[list[int]]
    tokens: list[list[int]] = field(default_factory=list)
    """What transformers and peft generate for each prompt alone."""
    logits: list[torch.Tensor] = field(default_factory=list)
    """[NEW_TOKENS, V] for each prompt: what each token was the largest of."""


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, overrides = CASES[request.param]
    folder = tmp_path_factory.mktemp("case")
    base = make_checkpoint(folder / "base", family, **overrides)
    adapters = {
        name: make_adapter(folder / name, base, seed=seed, **settings)
        for seed, (name, settings) in enumerate(ADAPTERS.items())
    }
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, 300, (length,), generator=generator).tolist() for length in LENGTHS]
    made = Case(base, adapters, prompts)
    _generate_alone(made)
    return made


@torch.inference_mode()
def _generate_alone(case: Case) -> None:
    model = reference_model(case.base, case.adapters)
    for prompt, name in zip(case.prompts, NAMES, strict=True):
        if name is not None:
            model.set_adapter(name)
        ids = list(prompt)
        with model.disable_adapter() if name is None else nullcontext():
            for _ in range(NEW_TOKENS):
                logits = model(input_ids=torch.tensor([ids])).logits[0]
                ids.append(int(logits[-1].argmax()))
        case.tokens.append(ids[len(prompt) :])
        case.logits.append(logits[len(prompt) - 1 :])


def open_llm(case: Case, **settings: Any) -> LLM:
    settings = {"max_model_len": 128, "num_kv_blocks": 64, "adapter_memory": 16 << 20, "num_threads": 1} | settings
    return LLM(case.base, case.adapters, **settings)


def run(llm: LLM, case: Case, order: list[int] | None = None) -> list[RequestOutput]:
    order = order or list(range(len(LENGTHS)))
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    outputs = llm.generate([case.prompts[i] for i in order], params, adapter=[NAMES[i] for i in order], use_tqdm=False)
    return [output for _, output in sorted(zip(order, outputs, strict=True), key=lambda pair: pair[0])]


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture
def logits_seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[tuple[tuple[int, ...], int], torch.Tensor]]:
    """(prompt, position in the output) -> the logits the engine drew from."""
    seen: dict[tuple[tuple[int, ...], int], torch.Tensor] = {}
    sample = Sampler.sample

    def recording(self: Sampler, logits: torch.Tensor, rows: list[SampleRow]) -> Sampled:
        for row, values in zip(rows, logits, strict=True):
            seen[tuple(row.prompt_token_ids), row.position] = values.clone()
        return sample(self, logits, rows)

    monkeypatch.setattr(Sampler, "sample", recording)
    yield seen


def test_one_mixed_batch_equals_transformers_and_peft_one_by_one(
    case: Case, logits_seen: dict[tuple[tuple[int, ...], int], torch.Tensor]
) -> None:
    with open_llm(case) as llm:
        assert tokens(run(llm, case)) == case.tokens
    for prompt, expected in zip(case.prompts, case.logits, strict=True):
        seen = torch.stack([logits_seen[tuple(prompt), position] for position in range(NEW_TOKENS)])
        assert (seen - expected).abs().max() < TOLERANCE


def test_chunks_preemption_and_another_order_change_no_token(case: Case) -> None:
    order = [3, 5, 0, 6, 1, 4, 2]
    with open_llm(case, max_num_batched_tokens=8, max_num_seqs=5, num_kv_blocks=8) as llm:
        assert tokens(run(llm, case, order)) == case.tokens
        before = llm.status().preemptions
        # Now no adapter is waited for: all requests want blocks at once.
        assert tokens(run(llm, case, order)) == case.tokens
        assert llm.status().preemptions > before


def test_a_shared_prefix_changes_no_token(case: Case) -> None:
    with open_llm(case) as llm:
        assert [output.num_cached_tokens for output in run(llm, case)] == [0] * len(LENGTHS)
        again = run(llm, case)
    assert tokens(again) == case.tokens
    assert [output.num_cached_tokens for output in again] == [(length - 1) // 16 * 16 for length in LENGTHS]


def test_adapters_matter(case: Case) -> None:
    """Without this the tests above could pass with adapters that do nothing."""
    with open_llm(case) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
        base = llm.generate(case.prompts, params, use_tqdm=False)
    changed = [mine != theirs for mine, theirs in zip(tokens(base), case.tokens, strict=True)]
    assert changed == [name is not None for name in NAMES]
