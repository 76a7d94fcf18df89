"""Random adapters of the kinds that are converted, as PEFT itself saves them."""

from pathlib import Path

import torch
from peft import AdaLoraConfig, LoHaConfig, LoKrConfig, PeftConfig, PeftModel, VeraConfig, get_peft_model
from transformers.models.auto import AutoModelForCausalLM

from loraplex.engine.model.config import base_signature
from loraplex.lora.conversion.convert import convert_adapter
from loraplex.lora.files.manifest import Finding

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
Q_0, Q_1, DOWN_1 = (
    "model.layers.0.self_attn.q_proj",
    "model.layers.1.self_attn.q_proj",
    "model.layers.1.mlp.down_proj",
)


def adalora(**settings: object) -> AdaLoraConfig:
    given = {"init_r": 6, "target_r": 3, "lora_alpha": 12, "total_step": 10, "target_modules": ALL}
    return AdaLoraConfig(**given | {"task_type": "CAUSAL_LM"} | settings)


def loha(**settings: object) -> LoHaConfig:
    return LoHaConfig(**{"r": 4, "alpha": 6, "target_modules": ALL, "task_type": "CAUSAL_LM"} | settings)


def lokr(**settings: object) -> LoKrConfig:
    return LoKrConfig(**{"r": 2, "alpha": 3, "target_modules": ALL, "task_type": "CAUSAL_LM"} | settings)


def vera(**settings: object) -> VeraConfig:
    return VeraConfig(**{"r": 5, "target_modules": ALL, "task_type": "CAUSAL_LM"} | settings)


def save_random(
    config: PeftConfig,
    base: Path,
    folder: Path,
    seed: int = 1,
    size: float = 0.5,
    kept: dict[str, list[bool]] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """An adapter whose change of each weight has about `size` times the weight's own Frobenius norm.

    `kept`: path of a module -> which ranks AdaLoRA has left it.
    """
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("lora_A", "lora_B", "lora_E", "hada_", "lokr_", "vera_lambda")):
                parameter.normal_()
        for change, scale in _changes(model):
            scale.mul_(size * change.shape[1] ** 0.5 / torch.linalg.norm(change))
    if kept is not None:
        config.rank_pattern = {f"{path}.lora_E.default": mask for path, mask in kept.items()}
    model.to(dtype).save_pretrained(folder)
    return folder


def converted(folder: Path, base: Path, target: Path, largest: int = 1 << 30) -> tuple[Finding, ...]:
    target.mkdir()
    config, weights = "adapter_config.json", "adapter_model.safetensors"
    return convert_adapter(
        (folder / config).read_bytes(),
        folder / weights,
        base_signature(base),
        target / config,
        target / weights,
        largest,
    )


def _changes(model: PeftModel) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(the change of a weight, a parameter that it is linear in)."""
    first = ("lora_E", "hada_w1_a", "lokr_w1", "lokr_w1_a", "vera_lambda_b")
    pairs = []
    for module in model.modules():
        if hasattr(module, "get_delta_weight"):
            part = next(getattr(module, part)["default"] for part in first if "default" in getattr(module, part, {}))
            pairs.append((module.get_delta_weight("default"), part))
    return pairs


def changes_of(folder: Path, base: Path) -> dict[str, torch.Tensor]:
    """path of the module -> what PEFT adds to its weight, in float64."""
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), folder)
    model.to(torch.float64)
    return {
        name.removeprefix("base_model.model."): module.get_delta_weight("default")
        for name, module in model.named_modules()
        if hasattr(module, "get_delta_weight")
    }
