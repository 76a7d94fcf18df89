"""Every kind of adapter against peft: all of them and the base mixed in one batch, each as peft computes it alone."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.lora import LoraLayer

from loraplex import LLM, SamplingParams
from loraplex.engine.sampler import Sampled, Sampler, SampleRow
from tests.checkpoints import ALL_KINDS, make_adapter, make_checkpoint, make_ia3, reference_model

BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-with-biases": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-narrow-heads": ("llama", {"head_dim": 24, "attention_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32}),
}
"""Heads of 24 are computed layer by layer, the others in one compiled call."""
BIASED = ("llama-with-biases", "qwen2")


def lora(**settings: Any) -> Callable[[Path, Path, int], Path]:
    return lambda folder, base, seed: make_adapter(folder, base, seed=seed, **settings)


def ia3(**settings: Any) -> Callable[[Path, Path, int], Path]:
    return lambda folder, base, seed: make_ia3(folder, base, seed=seed, **settings)


KINDS: dict[str, Callable[[Path, Path, int], Path]] = {
    "lora": lora(rank=8),
    "dora": lora(rank=8, use_dora=True),
    "dora-rank-64-rslora": lora(rank=64, alpha=8.0, use_dora=True, use_rslora=True, kinds=("q_proj", "down_proj")),
    "dora-rank-pattern": lora(rank=3, use_dora=True, rank_pattern={"v_proj": 13}, alpha_pattern={"q_proj": 5}),
    "ia3": ia3(),
    "ia3-everywhere": ia3(kinds=ALL_KINDS),
}
WITH_BIASES: dict[str, Callable[[Path, Path, int], Path]] = {
    "lora-bias": lora(rank=4, lora_bias=True, kinds=("q_proj", "v_proj")),
    "biases-of-all": lora(rank=4, bias="all", kinds=("q_proj",)),
    "biases-of-targets": lora(rank=4, bias="lora_only", kinds=("k_proj", "v_proj")),
    "dora-with-biases": lora(rank=4, bias="all", use_dora=True, kinds=("q_proj", "v_proj")),
}
NEW_TOKENS = 12
TOLERANCE = 1e-4


@dataclass
class Case:
    base: Path
    adapters: dict[str, Path]
    names: list[str | None]
    prompts: list[list[int]]
    tokens: list[list[int]] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)


@pytest.fixture(scope="module", params=BASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, overrides = BASES[request.param]
    folder = tmp_path_factory.mktemp("case")
    base = make_checkpoint(folder / "base", family, **overrides)
    kinds = KINDS | (WITH_BIASES if request.param in BIASED else {})
    adapters = {name: make(folder / name, base, seed) for seed, (name, make) in enumerate(kinds.items())}
    names = [None, *adapters]
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, 40, (len(names),), generator=generator).tolist()
    prompts = [torch.randint(3, 300, (length,), generator=generator).tolist() for length in lengths]
    made = Case(base, adapters, names, prompts)
    for prompt, name in zip(prompts, names, strict=True):
        _generate_alone(made, prompt, name)
    return made


@torch.inference_mode()
def _generate_alone(case: Case, prompt: list[int], name: str | None) -> None:
    """A model for each adapter: peft writes trained biases into the base that it shares."""
    model = reference_model(case.base, {} if name is None else {name: case.adapters[name]})
    ids = list(prompt)
    for _ in range(NEW_TOKENS):
        logits = model(input_ids=torch.tensor([ids])).logits[0]
        ids.append(int(logits[-1].argmax()))
    case.tokens.append(ids[len(prompt) :])
    case.logits.append(logits[len(prompt) - 1 :])


def open_llm(case: Case) -> LLM:
    return LLM(case.base, case.adapters, max_model_len=128, num_kv_blocks=64, adapter_memory=16 << 20)


def greedy() -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)


def test_sums_of_scaled_adapters_equal_peft(case: Case, tmp_path: Path) -> None:
    """Beside the base and each adapter alone, in one batch."""
    names, scales = ["lora", "other", "wide"], [0.7, -0.4, 1.3]
    adapters = {"lora": case.adapters["lora"]} | {
        name: make_adapter(tmp_path / name, case.base, rank=rank, seed=rank)
        for name, rank in (("other", 3), ("wide", 24))
    }
    sums = [dict(zip(names[:count], scales, strict=False)) for count in (1, 2, 3)]
    model = reference_model(case.base, adapters)
    prompts = case.prompts[: len(sums) + 2]
    expected = [
        _sum_with_peft(model, prompt, parts) for prompt, parts in zip(prompts, [*sums, {}, {"lora": 1.0}], strict=True)
    ]
    with LLM(case.base, adapters, max_model_len=128, num_kv_blocks=64, adapter_memory=16 << 20) as llm:
        outputs = llm.generate(prompts, greedy(), [*sums, None, "lora"], use_tqdm=False)
        with pytest.raises(ValueError, match="no adapter 'nobody'"):
            llm.generate(prompts[0], greedy(), {"lora": 1.0, "nobody": 1.0}, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == expected
    assert len({tuple(tokens) for tokens in expected[:4]}) == 4


@torch.inference_mode()
def _sum_with_peft(model: Any, prompt: list[int], parts: dict[str, float]) -> list[int]:
    ids = list(prompt)
    model.base_model.set_adapter(list(parts) or ["lora"])
    for module in model.modules():
        if isinstance(module, LoraLayer):
            for name in module.scaling:
                module.set_scale(name, parts.get(name, 0.0))
    for _ in range(NEW_TOKENS):
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_what_scales_the_base_is_not_summed(case: Case) -> None:
    with open_llm(case) as llm, pytest.raises(RuntimeError, match="can neither be scaled nor be added"):
        llm.generate(case.prompts[0], greedy(), {"lora": 1.0, "dora": 1.0}, use_tqdm=False)


def test_all_kinds_in_one_batch_equal_peft_one_by_one(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[tuple[tuple[int, ...], int], torch.Tensor] = {}
    sample = Sampler.sample

    def recording(self: Sampler, logits: torch.Tensor, rows: list[SampleRow]) -> Sampled:
        for row, values in zip(rows, logits, strict=True):
            seen[tuple(row.prompt_token_ids), row.position] = values.clone()
        return sample(self, logits, rows)

    monkeypatch.setattr(Sampler, "sample", recording)
    with open_llm(case) as llm:
        outputs = llm.generate(case.prompts, greedy(), case.names, use_tqdm=False)
    for output, name, tokens, logits in zip(outputs, case.names, case.tokens, case.logits, strict=True):
        found = torch.stack([seen[tuple(output.prompt_token_ids), position] for position in range(NEW_TOKENS)])
        assert (found - logits).abs().max() < TOLERANCE, name
        assert output.outputs[0].token_ids == tokens, name
