"""A LoRA with tensors of all experts, some of them shared by all: converted at upload, beside transformers and PEFT
with the same tensors written out for each expert."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3MoeConfig

from loraplex.engine.model.config import base_signature
from loraplex.lora.conversion.convert import convert_adapter
from loraplex.lora.conversion.kinds import is_converted
from loraplex.lora.files.manifest import Finding
from loraplex.lora.inspection.inspection import inspect_adapter

from .expert_adapters import make_expert_adapter
from .parity import check_adapters_matter, check_mixed_batch, make_base
from .test_expert_adapters import family_of
from .test_mixtures import QWEN3, SHAPE

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
EXPERTS = QWEN3["num_experts"]
SHORT = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
SHARED = {("gate_proj", "A"), ("up_proj", "A"), ("down_proj", "B")}
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), Qwen3MoeConfig(**SHAPE, **QWEN3, norm_topk_prob=True))


def make(folder: Path, base: Path, *, names: dict[str, str], per_expert: bool = False) -> tuple[Path, Path]:
    """The same adapter twice: with tensors of all experts, under these names, and written out for each expert.
    per_expert: what is not shared is written out in both."""
    written_out = make_expert_adapter(folder / "each", base)
    tensors = load_file(written_out / WEIGHTS)
    together = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(SHAPE["num_hidden_layers"]):
        for linear, name in names.items():
            for side in "AB":
                own = [f"base_model.model.model.layers.{layer}.mlp.experts.{n}.{linear}.lora_{side}.weight"
                       for n in range(EXPERTS)]  # fmt: skip
                stack = f"base_model.model.model.layers.{layer}.mlp.experts.{name}.lora_{side}.weight"
                if (linear, side) in SHARED:
                    tensors |= {one: tensors[own[0]].clone() for one in own}
                    together[stack] = tensors[own[0]][None]
                elif per_expert:
                    together |= {one: tensors[one] for one in own}
                else:
                    together[stack] = torch.stack([tensors[one] for one in own])
    save_file(tensors, written_out / WEIGHTS, {"format": "pt"})
    config = json.loads((written_out / CONFIG).read_text())
    config["target_modules"] = ["q_proj", "o_proj", *names.values()]
    (folder / "shared").mkdir()
    (folder / "shared" / CONFIG).write_text(json.dumps(config))
    save_file(together, folder / "shared" / WEIGHTS, {"format": "pt"})
    return folder / "shared", written_out


def converted(folder: Path, base: Path, target: Path) -> tuple[Finding, ...]:
    target.mkdir()
    config, signature = (folder / CONFIG).read_bytes(), base_signature(base)
    assert is_converted(config, folder / WEIGHTS, signature)
    return convert_adapter(config, folder / WEIGHTS, signature, target / CONFIG, target / WEIGHTS, 1 << 30)


@pytest.mark.parametrize("names", [SHORT, {name: name for name in SHORT}], ids=["short", "own"])
@pytest.mark.parametrize("per_expert", [False, True])
def test_every_value_is_copied(base: Path, tmp_path: Path, names: dict[str, str], per_expert: bool) -> None:
    shared, each = make(tmp_path, base, names=names, per_expert=per_expert)
    assert {finding.level for finding in converted(shared, base, tmp_path / "made")} == {"pass"}
    found, expected = load_file(tmp_path / "made" / WEIGHTS), load_file(each / WEIGHTS)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    digests = [
        inspect_adapter((folder / CONFIG).read_bytes(), folder / WEIGHTS, base_signature(base)).manifest
        for folder in (tmp_path / "made", each)
    ]
    assert digests[0] is not None and digests[1] is not None and digests[0].digest == digests[1].digest


def test_tokens_and_logits_are_those_of_the_tensors_written_out(base: Path, tmp_path: Path) -> None:
    shared, each = make(tmp_path, base, names=SHORT)
    family = family_of(base, {"one": shared}, {"one": each})
    check_mixed_batch(family)
    check_adapters_matter(family)


def rename(old: str, new: str) -> Callable[[Tensors], object]:
    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if f".experts.{old}." in name]:
            tensors[name.replace(f".{old}.", f".{new}.")] = tensors.pop(name)

    return change


FIRST = "base_model.model.model.layers.0.mlp.experts"


def put(name: str, *shape: int) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({f"{FIRST}.{name}.weight": torch.ones(shape)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("w1.lora_B", 5, 24, 4), f"is [5, 24, 4], not [1 or {EXPERTS}, outputs, rank]"),
        (put("w1.lora_A", 4, 48), f"is [4, 48], not [1 or {EXPERTS}, rank, inputs]"),
        (put("gate_proj.lora_A", 1, 4, 48), "two tensors for the same of an expert"),
        (put("3.down_proj.lora_B", 48, 4), "two tensors for the same of an expert"),
        (rename("w1", "gate_up_proj"), "and no gate_up_proj"),
        (lambda tensors: tensors.pop(f"{FIRST}.w2.lora_A.weight"), "has lora_B but no lora_A"),
        (put("w1.lora_B", EXPERTS, 23, 4), "but the base has 24 outputs"),
    ],
    ids=["count", "flat", "both names", "one beside all", "fused", "half", "outputs"],
)
def test_what_does_not_fit_is_named(base: Path, tmp_path: Path, change: Callable[[Tensors], Any], words: str) -> None:
    shared, _ = make(tmp_path, base, names=SHORT)
    tensors = load_file(shared / WEIGHTS)
    change(tensors)
    save_file(tensors, shared / WEIGHTS, {"format": "pt"})
    findings = converted(shared, base, tmp_path / "made")
    if not any(finding.level == "fail" for finding in findings):
        made = (tmp_path / "made" / CONFIG).read_bytes()
        findings = inspect_adapter(made, tmp_path / "made" / WEIGHTS, base_signature(base)).findings
    assert any(finding.level == "fail" and words in finding.message for finding in findings), findings
