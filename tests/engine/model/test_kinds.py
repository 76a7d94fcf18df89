"""Every kind of adapter against peft: all of them and the base mixed in one batch, each as peft computes it alone."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.config import VeloraConfig
from peft.tuners.lora.variants import calculate_alora_offsets

from loraplex import LLM, SamplingParams
from loraplex.engine.sampling.sampler import Sampled, Sampler, SampleRow
from tests.checkpoints import (
    ALL_KINDS,
    make_adapter,
    make_checkpoint,
    make_converted,
    make_ia3,
    make_tokens,
    reference_model,
)

BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-with-biases": (
        "llama",
        {"head_dim": 32, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama-narrow-heads": ("llama", {"head_dim": 24, "attention_bias": True}),
    "qwen2": ("qwen2", {"head_dim": 32}),
    "qwen3": ("qwen3", {"head_dim": 32}),
}
"""Heads of 24 are computed layer by layer, the others in one compiled call."""
BIASED = ("llama-with-biases", "qwen2")


def lora(**settings: Any) -> Callable[[Path, Path, int], Path]:
    return lambda folder, base, seed: make_adapter(folder, base, seed=seed, **settings)


def converted(**settings: Any) -> Callable[[Path, Path, int], Path]:
    return lambda folder, base, seed: make_converted(folder, base, seed, **settings)


def ia3(**settings: Any) -> Callable[[Path, Path, int], Path]:
    return lambda folder, base, seed: make_ia3(folder, base, seed=seed, **settings)


def tokens(**settings: Any) -> Callable[[Path, Path, int], Path]:
    return lambda folder, base, seed: make_tokens(folder, base, seed, **settings)


class Kind(NamedTuple):
    words: str
    """For the table of docs/adapters.md."""
    make: Callable[[Path, Path, int], Path]


TRAINED: Final = 7
"""A token that some adapters have rows of their own for; it is in every prompt."""
GROWN: Final = 325
SHRUNK: Final = 310
GROWING: Final = ("added-tokens", "trained-added-tokens", "saved-added-tokens", "saved-added-head")
VOCABULARIES: Final = dict.fromkeys(GROWING, GROWN) | {"fewer-tokens": SHRUNK}
"""Tokens of the models that do not know the base's 320."""
KINDS: dict[str, Kind] = {
    "lora": Kind('LoRA on all seven linears, or `target_modules="all-linear"`', lora(rank=8, kinds="all-linear")),
    "lora-some": Kind("LoRA on any of them; `use_rslora`", lora(rank=16, use_rslora=True, kinds=("up_proj", "o_proj"))),
    "lora-layers": Kind(
        "`layers_to_transform`, `exclude_modules`",
        lora(rank=2, kinds=("q_proj", "v_proj", "k_proj"), layers_to_transform=[1], exclude_modules=["k_proj"]),
    ),
    "lora-patterns": Kind(
        "`rank_pattern`, `alpha_pattern`",
        lora(rank=3, rank_pattern={"v_proj": 13, "layers.1.mlp.up_proj": 40}, alpha_pattern={"q_proj": 5, "o_proj": 9}),
    ),
    "velora": Kind("VeLoRA", lora(rank=4, kinds=("q_proj", "v_proj"), velora_config=VeloraConfig(num_groups=4))),
    "lora-wide": Kind("ranks from 1 to 512", lora(rank=512, kinds=("down_proj",))),
    "lora-narrow": Kind("", lora(rank=1, kinds=("q_proj",), alpha=3)),
    "lora-negative": Kind("a negative `lora_alpha`", lora(rank=4, alpha=-6)),
    "pissa": Kind("PiSSA and OLoRA, saved converted to the base as it is", converted(start="pissa")),
    "olora": Kind("", converted(start="olora", use_rslora=True)),
    "dora": Kind("DoRA (`use_dora`)", lora(rank=8, use_dora=True)),
    "dora-rslora": Kind("", lora(rank=64, alpha=8.0, use_dora=True, use_rslora=True, kinds=("q_proj", "down_proj"))),
    "dora-patterns": Kind("", lora(rank=3, use_dora=True, rank_pattern={"v_proj": 13}, alpha_pattern={"q_proj": 5})),
    "ends": Kind(
        "LoRA on the embedding and the output head", lora(rank=12, kinds=("embed_tokens", "lm_head", "v_proj"))
    ),
    "embedding": Kind("", lora(rank=3, kinds=("embed_tokens",), alpha=2)),
    "head-rslora": Kind("", lora(rank=20, kinds=("lm_head",), use_rslora=True, alpha=4.0)),
    "dora-ends": Kind("", lora(rank=4, kinds=("embed_tokens", "lm_head", "up_proj"), use_dora=True)),
    "saved-norms": Kind(
        "`modules_to_save` of norms, the embedding, the output head",
        lora(rank=4, kinds=("q_proj",), modules_to_save=["norm"]),
    ),
    "saved-layer-norms": Kind("", lora(rank=4, kinds=("q_proj",), modules_to_save=["layers.1.input_layernorm"])),
    "saved-ends": Kind("", lora(rank=4, kinds=("q_proj",), modules_to_save=["embed_tokens", "lm_head"])),
    "saved-not-targeted": Kind(
        "", lora(rank=4, kinds=("q_proj", "lm_head"), modules_to_save=["lm_head", "layers.0.input_layernorm"])
    ),
    "saved-embedding": Kind("", lora(rank=4, kinds=("q_proj",), modules_to_save=["embed_tokens"])),
    "tokens": Kind(
        "single trained tokens (`trainable_token_indices`)",
        lora(rank=4, kinds=("q_proj",), trainable_token_indices=[TRAINED, 300, 11]),
    ),
    "tokens-alone": Kind("trained tokens alone (`TrainableTokensConfig`)", tokens(token_indices=[300, TRAINED])),
    "tied-ends": Kind("", lora(rank=4, kinds=("embed_tokens", "v_proj"), ensure_weight_tying=True)),
    "tied-ends-of-another-rank": Kind(
        "",
        lora(
            rank=4,
            kinds=("embed_tokens", "v_proj"),
            ensure_weight_tying=True,
            rank_pattern={"embed_tokens": 6, "lm_head": 3},
            alpha_pattern={"lm_head": 5},
        ),
    ),
    "tokens-of-the-head": Kind(
        "", lora(rank=4, kinds=("q_proj",), trainable_token_indices={"lm_head": [TRAINED, 300, 11]})
    ),
    "added-tokens": Kind(
        "tokens added by `resize_token_embeddings`",
        lora(rank=4, kinds=("q_proj",), vocab_size=GROWN),
    ),
    "trained-added-tokens": Kind(
        "", lora(rank=4, kinds=("q_proj",), vocab_size=GROWN, trainable_token_indices=[*range(320, GROWN), TRAINED])
    ),
    "saved-added-tokens": Kind(
        "", lora(rank=4, kinds=("q_proj",), vocab_size=GROWN, modules_to_save=["embed_tokens", "lm_head"])
    ),
    "saved-added-head": Kind("", lora(rank=4, kinds=("q_proj",), vocab_size=GROWN, modules_to_save=["lm_head"])),
    "fewer-tokens": Kind("", lora(rank=4, kinds=("q_proj",), vocab_size=SHRUNK)),
    "alora": Kind(
        "activated LoRA (`alora_invocation_tokens`), also in sums", lora(rank=8, alora_invocation_tokens=[310])
    ),
    "alora-some": Kind(
        "", lora(rank=3, kinds=("v_proj", "up_proj"), use_rslora=True, alora_invocation_tokens=[311, 312, 311])
    ),
    "ia3": Kind("IA3", ia3()),
    "ia3-everywhere": Kind("IA3 on any linears; of `feedforward_modules` down_proj", ia3(kinds=ALL_KINDS)),
}
WITH_BIASES: dict[str, Kind] = {
    "lora-bias": Kind("a bias of lora_B (`lora_bias`)", lora(rank=4, lora_bias=True, kinds=("q_proj", "v_proj"))),
    "alora-bias": Kind(
        "", lora(rank=4, lora_bias=True, kinds=("k_proj", "o_proj"), alora_invocation_tokens=[310, 311])
    ),
    "biases-of-all": Kind('trained biases of all linears (`bias="all"`)', lora(rank=4, bias="all", kinds=("q_proj",))),
    "biases-of-targets": Kind(
        'trained biases of the targets (`bias="lora_only"`)', lora(rank=4, bias="lora_only", kinds=("k_proj", "v_proj"))
    ),
    "dora-with-biases": Kind("", lora(rank=4, bias="all", use_dora=True, kinds=("q_proj", "v_proj"))),
}
PAGE = Path(__file__).parents[3] / "docs" / "adapters.md"
NEW_TOKENS = 12
TOLERANCE = 1e-4
INVOCATION = "alora_invocation_tokens"


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
    adapters = {name: kind.make(folder / name, base, seed) for seed, (name, kind) in enumerate(kinds.items())}
    names = [None, *adapters]
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, 40, (len(names),), generator=generator).tolist()
    prompts = [
        [*torch.randint(3, VOCABULARIES.get(name or "", 300), (length,), generator=generator).tolist(), TRAINED]
        for name, length in zip(names, lengths, strict=True)
    ]
    for name, prompt in zip(names, prompts, strict=True):
        if VOCABULARIES.get(name or "") == GROWN:
            prompt += range(320, GROWN)
    prompts = [invoke(prompt, adapters.get(name or "")) for prompt, name in zip(prompts, names, strict=True)]
    made = Case(base, adapters, names, prompts)
    for prompt, name in zip(prompts, names, strict=True):
        _generate_alone(made, prompt, name)
    return made


def invoke(prompt: list[int], adapter: Path | None) -> list[int]:
    """The prompt with the invocation tokens in it, twice, where the adapter has some."""
    tokens = (json.loads((adapter / "adapter_config.json").read_text()) if adapter else {}).get(INVOCATION) or []
    first, second = len(prompt) // 3, 2 * len(prompt) // 3
    return prompt[:first] + tokens + prompt[first:second] + tokens + prompt[second:]


@torch.inference_mode()
def _generate_alone(case: Case, prompt: list[int], name: str | None) -> None:
    """A model for each adapter: peft writes trained biases into the base that it shares."""
    adapters = {} if name is None else {name: case.adapters[name]}
    model = reference_model(case.base, adapters, VOCABULARIES.get(name or ""))
    ids = list(prompt)
    for made in range(NEW_TOKENS):
        logits = model(input_ids=torch.tensor([ids]), **offsets(model, prompt, made)).logits[0]
        ids.append(int(logits[-1].argmax()))
    case.tokens.append(ids[len(prompt) :])
    case.logits.append(logits[len(prompt) - 1 :])


def offsets(model: Any, prompt: list[int], made: int) -> dict[str, list[int]]:
    """As peft's generate() fixes them for a prompt with `made` tokens after it."""
    if not any(getattr(config, INVOCATION, None) for config in getattr(model, "peft_config", {}).values()):
        return {}
    names = [name for name, config in model.peft_config.items() if config.alora_invocation_tokens]
    [offset] = calculate_alora_offsets(model.peft_config, names[0], torch.tensor([prompt]))
    return {"alora_offsets": [offset + made]}


def open_llm(case: Case) -> LLM:
    return LLM(case.base, case.adapters, max_model_len=128, num_kv_blocks=64, adapter_memory=16 << 20)


def greedy() -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)


def test_sums_of_scaled_adapters_equal_peft(case: Case, tmp_path: Path) -> None:
    """Beside the base and each adapter alone, in one batch."""
    names, scales = ["lora", "other", "alora"], [0.7, -0.4, 1.3]
    biased = {name: case.adapters[name] for name in ("lora-bias",) if name in case.adapters}
    adapters = (
        {name: case.adapters[name] for name in ("lora", "alora")}
        | biased
        | {name: make_adapter(tmp_path / name, case.base, rank=rank, seed=rank) for name, rank in (("other", 3),)}
    )
    sums = [dict(zip(names[:count], scales, strict=False)) for count in (1, 2, 3)]
    sums.append(dict(zip(names[::-1], scales, strict=True)))
    sums += [{name: 2.0, "lora": 0.5} for name in biased]
    model = reference_model(case.base, adapters)
    prompts = [invoke(prompt, case.adapters["alora"]) for prompt in case.prompts[: len(sums) + 2]]
    expected = [
        _sum_with_peft(model, prompt, parts) for prompt, parts in zip(prompts, [*sums, {}, {"lora": 1.0}], strict=True)
    ]
    with LLM(case.base, adapters, max_model_len=128, num_kv_blocks=64, adapter_memory=16 << 20) as llm:
        outputs = llm.generate(prompts, greedy(), adapter=[*sums, None, "lora"], use_tqdm=False)
        with pytest.raises(ValueError, match="no adapter 'nobody'"):
            llm.generate(prompts[0], greedy(), adapter={"lora": 1.0, "nobody": 1.0}, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == expected
    assert len({tuple(tokens) for tokens in expected}) == len(expected)


@torch.inference_mode()
def _sum_with_peft(model: Any, prompt: list[int], parts: dict[str, float]) -> list[int]:
    ids = list(prompt)
    model.base_model.set_adapter(list(parts) or ["lora"])
    for module in model.modules():
        if isinstance(module, LoraLayer):
            for name in module.scaling:
                module.set_scale(name, parts.get(name, 0.0))
    for made in range(NEW_TOKENS):
        logits = model(input_ids=torch.tensor([ids]), **offsets(model, prompt, made)).logits
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_what_scales_the_base_is_not_summed(case: Case) -> None:
    with open_llm(case) as llm, pytest.raises(ValueError, match="can neither be scaled nor be added"):
        llm.generate(case.prompts[0], greedy(), adapter={"lora": 1.0, "dora": 1.0}, use_tqdm=False, strict=True)


def test_all_kinds_in_one_batch_equal_peft_one_by_one(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[tuple[tuple[int, ...], int], torch.Tensor] = {}
    sample = Sampler.sample

    def recording(self: Sampler, logits: torch.Tensor, rows: list[SampleRow]) -> Sampled:
        for row, values in zip(rows, logits, strict=True):
            seen[tuple(row.prompt_token_ids), row.position] = F.pad(values, (0, GROWN - len(values)), value=-torch.inf)
        return sample(self, logits, rows)

    monkeypatch.setattr(Sampler, "sample", recording)
    with open_llm(case) as llm:
        outputs = llm.generate(case.prompts, greedy(), adapter=case.names, use_tqdm=False)
    for output, name, tokens, logits in zip(outputs, case.names, case.tokens, case.logits, strict=True):
        found = torch.stack([seen[tuple(output.prompt_token_ids), position] for position in range(NEW_TOKENS)])
        size = logits.shape[1]
        assert (found[:, :size] - logits).abs().max() < TOLERANCE, name
        assert bool((found[:, size:] == -torch.inf).all()), name
        assert output.outputs[0].token_ids == tokens, name


def test_the_page_names_the_kinds_that_are_tested_here() -> None:
    rows = [f"| {kind.words} |" for kind in (*KINDS.values(), *WITH_BIASES.values()) if kind.words]
    table = "\n".join(["| served as PEFT computes it |", "|---|", *rows])
    assert table in PAGE.read_text(), f"put this table into {PAGE.name}:\n{table}"
