"""Adapters with a LoRA on single experts, as PEFT saves those that were trained with a module for each expert."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from safetensors.torch import load_file, save_file

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.description.feed_forward import ExpertsSpec
from loraplex.engine.model.expected import layer_path
from loraplex.engine.model.loader import Checkpoint


def make_expert_adapter(
    folder: Path,
    base: Path,
    *,
    rank: int = 4,
    experts: Collection[int] | None = None,
    others: tuple[str, ...] = ("q_proj", "o_proj"),
    seed: int = 0,
    idle: bool = False,
    **settings: Any,
) -> Path:
    """experts: those with a LoRA on all their linears; None: all. others: kinds of other linears. idle: experts that
    have no LoRA get one of zeros."""
    spec = ModelConfig.from_folder(base).spec
    checkpoint, tensors, targets = Checkpoint(base, spec), dict[str, torch.Tensor](), set(others)
    for number, layer in enumerate(spec.layers):
        assert isinstance(layer.feed_forward, ExpertsSpec)
        adapted = {one: True for one in layer.linears() if one.kind in others}
        beside = {one.kind for one in layer.linears()}
        for one in layer.expert_linears():
            expert = int(one.path.split(".")[-2])
            is_chosen = experts is None or expert in experts
            if is_chosen or idle:
                adapted[one] = is_chosen
                is_plain = (experts is None or idle) and one.kind not in beside
                targets.add(one.kind if is_plain else f"experts.{expert}.{one.kind}")
        for one, acts in adapted.items():
            name = f"{layer_path(spec, number)}{one.path}"
            random = torch.Generator().manual_seed(seed + crc32(name.encode()))
            stem, b = f"base_model.model.{name}", torch.randn(one.outputs, rank, generator=random)
            a = torch.randn(rank, one.inputs, generator=random)
            tensors[f"{stem}.lora_A.weight"] = a * (0.5 / one.inputs**0.5)
            tensors[f"{stem}.lora_B.weight"] = b * (acts * 0.8 / rank**0.5)
            if settings.get("use_dora"):
                factors = 0.7 + 0.6 * torch.rand(one.outputs, generator=random)
                tensors[f"{stem}.lora_magnitude_vector"] = factors * checkpoint.tensor(f"{name}.weight").norm(dim=1)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "bias": "none",
        "target_modules": sorted(targets), "base_model_name_or_path": str(base), "inference_mode": True,
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(config | settings))
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    return folder


def as_parameters(folder: Path, base: Path, source: Path) -> Path:
    """An adapter on all experts, each by its modules, as PEFT has one on their parameters: gate and up, which are one
    parameter, share a LoRA of twice the rank. PEFT loads single experts of some families alone."""
    spec, weights = ModelConfig.from_folder(base).spec, "adapter_model.safetensors"
    config, tensors = json.loads((source / "adapter_config.json").read_text()), load_file(source / weights)
    kept, parameters = {name: it for name, it in tensors.items() if ".experts." not in name}, set[str]()
    for number, layer in enumerate(spec.layers):
        own = layer.feed_forward
        assert isinstance(own, ExpertsSpec)
        for parameter, inner, linears in (
            (own.stacked.inputs, ".base_layer", own.expert.inputs),
            (own.stacked.output, "", (own.expert.output,)),
        ):
            paths = [
                [f"base_model.model.{layer_path(spec, number)}{own.path}.{expert}.{one.path}" for one in linears]
                for expert in range(own.routing.num_experts)
            ]
            a = torch.cat([tensors[f"{path}.lora_A.weight"] for each in paths for path in each])
            each_b = [torch.block_diag(*(tensors[f"{path}.lora_B.weight"] for path in each)) for each in paths]
            stem = f"base_model.model.{layer_path(spec, number)}{own.stacked.module}{inner}"
            kept |= {
                f"{stem}.lora_A.weight": a,
                f"{stem}.lora_B.weight": torch.stack(each_b, dim=-1).flatten(1).contiguous(),
            }
            parameters.add(f"{own.stacked.module}.{parameter}")
    twice = {"rank_pattern": {"experts.gate_up_proj": 2 * config["r"]}}
    twice["alpha_pattern"] = {"experts.gate_up_proj": 2 * config["lora_alpha"]}
    targets = [name for name in config["target_modules"] if "experts." not in name]
    folder.mkdir(parents=True)
    changed = {"target_modules": targets, "target_parameters": sorted(parameters)} | twice
    (folder / "adapter_config.json").write_text(json.dumps(config | changed))
    save_file(kept, folder / weights, {"format": "pt"})
    return folder
