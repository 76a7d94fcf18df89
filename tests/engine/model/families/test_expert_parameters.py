"""Adapters on parameters of all experts (PEFT's target_parameters): converted at upload, beside PEFT itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import Gemma4TextConfig, GptOssConfig, MixtralConfig, PretrainedConfig, Qwen2MoeConfig, Qwen3MoeConfig
from transformers.models.auto import AutoModelForCausalLM

from loraplex.engine.model.config import ModelConfig, base_signature
from loraplex.engine.model.description.feed_forward import ExpertsSpec
from loraplex.lora.conversion.convert import convert_adapter
from loraplex.lora.files.manifest import Finding
from loraplex.lora.inspection.inspection import inspect_adapter

from .expert_adapters import make_expert_adapter
from .parity import check_adapters_matter, check_mixed_batch, make_base
from .test_expert_adapters import family_of
from .test_mixtures import GEMMA4, QWEN2, QWEN3, SHAPE

PARAMETERS = ["experts.gate_up_proj", "experts.down_proj"]
WEIGHTS = "adapter_model.safetensors"
CONFIGS: dict[str, PretrainedConfig] = {
    "qwen3": Qwen3MoeConfig(**SHAPE, **QWEN3, mlp_only_layers=[1]),
    "qwen2": Qwen2MoeConfig(**SHAPE, **QWEN2, shared_expert_intermediate_size=36),
    "gpt-oss": GptOssConfig(**SHAPE | {"intermediate_size": 48}, num_local_experts=6, num_experts_per_tok=3),
    "mixtral": MixtralConfig(**SHAPE, num_local_experts=5, num_experts_per_tok=2),
    "gemma4": Gemma4TextConfig(**SHAPE, **GEMMA4),
}


@pytest.fixture(scope="module", params=CONFIGS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp(request.param), CONFIGS[request.param])


def make(folder: Path, base: Path, *, seed: int = 0, **settings: Any) -> Path:
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    how: dict[str, Any] = {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj"], "target_parameters": PARAMETERS}
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **how | settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.8 / parameter.shape[1] ** 0.5)
    adapted.save_pretrained(folder)
    return folder


def converted(folder: Path, base: Path, target: Path) -> tuple[Finding, ...]:
    target.mkdir()
    config = (folder / "adapter_config.json").read_bytes()
    return convert_adapter(
        config, folder / WEIGHTS, base_signature(base), target / "adapter_config.json", target / WEIGHTS, 1 << 30
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"target_modules": [], "target_parameters": PARAMETERS[1:], "use_rslora": True},
        {"rank_pattern": {"experts.gate_up_proj": 2}, "alpha_pattern": {"experts.down_proj": 9, "gate_proj": 50}},
    ],
    ids=["both", "one-alone", "patterns"],
)
def test_tokens_and_logits_are_pefts(base: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    family = family_of(base, {"one": make(tmp_path / "one", base, **settings)})
    check_mixed_batch(family)
    check_adapters_matter(family)


@pytest.mark.parametrize("beside", [PARAMETERS, []], ids=["with-experts", "alone"])
def test_routers_are_parameters_since_transformers_5(base: Path, tmp_path: Path, beside: list[str]) -> None:
    own = ModelConfig.from_folder(base).spec.layers[0].feed_forward
    assert isinstance(own, ExpertsSpec)
    router = own.routing.router.path.replace("block_sparse_moe", "mlp")
    pattern = {"alpha_pattern": {f"{router}.weight": 11}}
    family = family_of(
        base, {"one": make(tmp_path / "one", base, target_parameters=[*beside, f"{router}.weight"], **pattern)}
    )
    check_mixed_batch(family)
    check_adapters_matter(family)


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("mixtral", ["q_proj", "w1", "w2", "w3", "gate"]),
        ("mixtral", "all-linear"),
        ("qwen3", ["q_proj", "gate_proj", "up_proj", "down_proj"]),
    ],
)
def test_parameters_that_peft_made_of_modules(tmp_path: Path, family: str, targets: list[str] | str) -> None:
    """As people name them: PEFT has parameters instead, with a pattern for the rank of gate and up together."""
    base = make_base(tmp_path / "base", CONFIGS[family])
    made = make(tmp_path / "one", base, target_modules=targets, target_parameters=None)
    said = json.loads((made / "adapter_config.json").read_text())
    assert said["rank_pattern"] == {r".*\.gate_up_proj": 6} and "gate_up_proj" in said["target_parameters"]
    served = family_of(base, {"one": made})
    check_mixed_batch(served)
    check_adapters_matter(served)


def test_values_are_copied_and_experts_without_effect_left_out(base: Path, tmp_path: Path) -> None:
    folder = make(tmp_path / "one", base)
    tensors = load_file(folder / WEIGHTS)
    count = base_signature(base).stacked[0].count
    for name, tensor in tensors.items():
        if "experts" in name and "lora_B" in name:
            tensor[:, 2::count] = 0
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, folder / WEIGHTS)
    findings = converted(folder, base, tmp_path / "two")
    assert {finding.level for finding in findings} == {"pass", "warn"}, findings
    found = load_file(tmp_path / "two" / WEIGHTS)
    assert all(tensor.dtype == torch.bfloat16 for tensor in found.values())
    assert not any("experts.2." in name for name in found) and any("experts.3." in name for name in found)
    values = torch.cat([tensor.flatten() for name, tensor in found.items() if "experts" in name and "lora_B" in name])
    stored = [tensor for name, tensor in tensors.items() if "experts" in name and "lora_B" in name]
    kept = torch.cat([tensor[tensor != 0] for tensor in stored])
    assert torch.equal(values.sort().values, kept.bfloat16().sort().values)
    config = (tmp_path / "two" / "adapter_config.json").read_bytes()
    assert inspect_adapter(config, tmp_path / "two" / WEIGHTS, base_signature(base)).manifest is not None


def test_an_expert_that_acts_in_one_layer_keeps_its_place_in_all(tmp_path: Path) -> None:
    """Its pages are of all layers anyway, and its name within a layer says what thousands of whole names would."""
    base = make_base(tmp_path / "base", CONFIGS["qwen3"])
    patterns = {"rank_pattern": {"experts.gate_up_proj": 2}, "alpha_pattern": {"experts.gate_up_proj": 5}}
    folder = make(tmp_path / "one", base, **patterns)
    tensors = load_file(folder / WEIGHTS)
    for name, tensor in tensors.items():
        if "layers.0.mlp.experts" in name and "lora_B" in name:
            tensor[:, 3::7] = 0
    save_file(tensors, folder / WEIGHTS)
    assert {finding.level for finding in converted(folder, base, tmp_path / "two")} == {"pass"}
    found = load_file(tmp_path / "two" / WEIGHTS)
    assert not found["base_model.model.model.layers.0.mlp.experts.3.up_proj.lora_B.weight"].any()
    assert found["base_model.model.model.layers.2.mlp.experts.3.up_proj.lora_B.weight"].any()
    config = json.loads((tmp_path / "two" / "adapter_config.json").read_text())
    assert config["rank_pattern"]["mlp.experts.3.up_proj"] == 2
    assert not any("layers" in name for name in (*config["target_modules"], *config["rank_pattern"]))


@pytest.mark.parametrize("how", [make_expert_adapter, make], ids=["modules", "parameters"])
def test_128_experts(how: Callable[..., Path], tmp_path: Path) -> None:
    """As many as the largest have, in few layers and narrow ones."""
    shape = SHAPE | {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2}
    many = QWEN3 | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 8}
    base = make_base(tmp_path / "base", Qwen3MoeConfig(**shape, **many, norm_topk_prob=True))
    family = family_of(base, {"one": how(tmp_path / "one", base)})
    check_mixed_batch(family)
    check_adapters_matter(family)


def test_older_peft_took_the_inputs_for_the_outputs(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", CONFIGS["qwen3"])
    folder = make(tmp_path / "new", base)
    converted(folder, base, tmp_path / "from-new")
    tensors = load_file(folder / WEIGHTS)
    for name in [name for name in tensors if "experts" in name and "lora_A" in name]:
        other = name.replace("lora_A", "lora_B")
        a, b = tensors[name].view(7, 3, -1), tensors[other].view(-1, 3, 7)
        tensors[name] = b.permute(2, 1, 0).reshape(21, -1).contiguous()
        tensors[other] = a.permute(2, 1, 0).reshape(-1, 21).contiguous()
    save_file(tensors, folder / WEIGHTS)
    say_version(folder, "0.18.1")
    converted(folder, base, tmp_path / "from-old")
    new, old = (load_file(tmp_path / name / WEIGHTS) for name in ("from-new", "from-old"))
    assert new.keys() == old.keys() and all(torch.equal(new[name], old[name]) for name in new)
    say_version(folder, None)
    findings = converted(folder, base, tmp_path / "from-nowhere")
    assert any("must say the peft_version" in finding.message for finding in findings), findings


def say_version(folder: Path, version: str | None) -> None:
    config = json.loads((folder / "adapter_config.json").read_text()) | {"peft_version": version}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def drop(name: str) -> Callable[[dict[str, Any], dict[str, torch.Tensor]], object]:
    return lambda config, tensors: tensors.pop(next(one for one in tensors if name in one))


def cut(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    for side in ("A", "B"):
        name = next(one for one in tensors if "experts" in one and f"lora_{side}" in one)
        tensors[name] = tensors[name][:20] if side == "A" else tensors[name][:, :20].contiguous()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config, tensors: config.update(target_parameters=["mlp.experts.*"]), "without patterns"),
        (lambda config, tensors: config.update(target_parameters="mlp.experts.down_proj"), "must be a list"),
        (lambda config, tensors: config["target_parameters"].append("mlp.experts.w9"), "no parameter of the base's"),
        (lambda config, tensors: config["target_parameters"].append("mlp.gates.weight"), "no parameter of the base's"),
        (lambda config, tensors: config.update(rank_pattern={"(mlp|x).experts": 3}), "patterns are not supported"),
        (lambda config, tensors: config["target_parameters"].pop(), "does not name parameters with tensors"),
        (drop("layers.2.mlp.experts.base_layer.lora_B"), "it has no lora_B"),
        (cut, "which 7 experts do not share evenly"),
        (lambda config, tensors: config.update(r=2), "has rank 3, adapter_config.json says 2"),
        (lambda config, tensors: config.update(use_dora=True), "use_dora and lora_bias are not there"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], object], words: str
) -> None:
    base = make_base(tmp_path / "base", CONFIGS["qwen3"])
    folder = make(tmp_path / "one", base)
    config, tensors = json.loads((folder / "adapter_config.json").read_text()), load_file(folder / WEIGHTS)
    change(config, tensors)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / WEIGHTS)
    findings = converted(folder, base, tmp_path / "two")
    assert any(finding.level == "fail" and words in finding.message for finding in findings), findings
