"""Tiny checkpoints in quantized formats, each beside the checkpoint of float32 weights that it stands for."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.description.feed_forward import ExpertsSpec, FeedForwardSpec
from loraplex.engine.model.description.spec import LinearSpec, ModelSpec
from loraplex.engine.model.expected import layer_path
from loraplex.engine.model.loader import Checkpoint
from tests.checkpoints import make_checkpoint
from tests.quant.made_formats import Make, awq, compressed, float8, gptq

FILE = "model.safetensors"


@dataclass
class Case:
    config: dict[str, Any]
    """The quantization_config."""
    make: Callable[[str], Make | None]
    """How the linear of a name is quantized; None for floats."""
    family: str = "llama"
    beside: dict[str, torch.Tensor] = field(default_factory=dict)
    """Tensors that say nothing about the weights."""
    settings: dict[str, Any] = field(default_factory=dict)


def layers(make: Make) -> Callable[[str], Make | None]:
    return lambda name: None if name == "lm_head" else make


def scheme(kind: str, bits: int, strategy: str, targets: list[str] | None = None, **weights: Any) -> dict[str, Any]:
    """One of config_groups."""
    stored = weights.pop("format", None)
    inputs = weights.pop("inputs", None)
    said = {"type": kind, "num_bits": bits, "strategy": strategy, "symmetric": True, "dynamic": False} | weights
    return {"targets": targets or ["Linear"], "weights": said, "input_activations": inputs, "format": stored}


def groups(
    stored: str, *schemes: dict[str, Any], ignore: tuple[str, ...] = ("lm_head",), **more: Any
) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": stored,
        "quantization_status": "compressed",
        "config_groups": {f"group_{number}": scheme for number, scheme in enumerate(schemes)},
        "ignore": list(ignore),
    } | more


STATIC = {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True, "dynamic": False}
DYNAMIC = {"type": "int", "num_bits": 8, "strategy": "token", "symmetric": True, "dynamic": True}


def mixed(name: str) -> Make | None:
    if "k_proj" in name or "gate" in name:
        return None
    if "self_attn" in name:
        return compressed(4, 16)
    return float8((1, None)) if "mlp" in name else compressed(8, "channel", packed=False)


def ruled(name: str) -> Make | None:
    """As the rules of gptq-rules say."""
    if name == "lm_head" or "k_proj" in name:
        return None
    if "gate" in name or "up" in name:
        return gptq(8, -1)
    return gptq(4, 16, ordered=True, symmetric=False) if "1.mlp.down" in name else gptq(4, 32)


CASES: dict[str, Case] = {
    "awq": Case({"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}, layers(awq(16))),
    "awq-some": Case(
        {"quant_method": "awq", "w_bit": 4, "q_group_size": -1, "modules_to_not_convert": ["layers.1.mlp", "q_proj"]},
        lambda name: None if name == "lm_head" or "1.mlp" in name or "q_proj" in name else awq(-1),
        "qwen2",
    ),
    "gptq": Case({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}, layers(gptq(4, 32))),
    "gptq-ordered-asymmetric": Case(
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 16,
            "desc_act": True,
            "sym": False,
            "checkpoint_format": "gptq_v2",
        },
        layers(gptq(4, 16, ordered=True, symmetric=False, version=2)),
        "qwen3",
    ),
    "gptq8-head": Case(
        {"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": True, "lm_head": True},
        lambda name: gptq(8, -1),
        beside={"model.layers.0.mlp.up_proj.bias": torch.zeros(96)},
    ),
    "gptq-rules": Case(
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 32,
            "dynamic": {
                "-:.*k_proj": {},
                r"+:.*\.mlp\.(gate|up)_proj$": {"bits": 8, "group_size": -1},
                r"model\.layers\.1\..*down_proj": {"group_size": 16, "sym": False, "desc_act": True},
            },
        },
        ruled,
        "qwen2",
    ),
    "packed4": Case(
        groups("pack-quantized", scheme("int", 4, "group", group_size=16)), layers(compressed(4, 16)), "qwen3"
    ),
    "packed4-asymmetric": Case(
        groups("pack-quantized", scheme("int", 4, "group", group_size=32, symmetric=False, actorder="static")),
        layers(compressed(4, 32, symmetric=False)),
    ),
    "packed8": Case(groups("pack-quantized", scheme("int", 8, "channel")), layers(compressed(8, "channel")), "mistral"),
    "packed4-ordered": Case(
        groups("pack-quantized", scheme("int", 4, "group", group_size=32, actorder="group")),
        layers(compressed(4, 32, ordered=True)),
    ),
    "int8": Case(
        groups("int-quantized", scheme("int", 8, "channel", inputs=DYNAMIC)),
        layers(compressed(8, "channel", packed=False)),
        "qwen2",
    ),
    "float8": Case(
        groups("float-quantized", scheme("float", 8, "tensor", inputs=STATIC), kv_cache_scheme=STATIC),
        layers(float8(scale_shape=(1,), static=True)),
        beside={f"model.layers.{layer}.self_attn.{what}_scale": torch.ones(1) for layer in (0, 1) for what in "kv"},
    ),
    "float8-channels": Case(
        groups("float-quantized", scheme("float", 8, "channel")), layers(float8((1, None))), "qwen3"
    ),
    "mixed": Case(
        groups(
            "mixed-precision",
            scheme("int", 4, "group", ["re:.*self_attn.*"], group_size=16, format="pack-quantized"),
            scheme("float", 8, "channel", ["re:.*mlp.*"], format="float-quantized"),
            scheme("int", 8, "channel", format="int-quantized"),
            ignore=("re:.*k_proj$", "model.layers.0.mlp.gate_proj", "model.layers.1.mlp.gate_proj"),
        ),
        mixed,
    ),
    "fp8": Case({"quant_method": "fp8", "activation_scheme": "static"}, layers(float8(scale_shape=(), static=True))),
    "fp8-of-transformers": Case(
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
        layers(float8((None, None), "weight_scale_inv", (), static=True, input_scale_name="activation_scale")),
        "mistral",
    ),
    "fp8-blocks": Case(
        {"quant_method": "fp8", "weight_block_size": [32, 32], "modules_to_not_convert": ["lm_head"]},
        layers(float8((32, 32), "weight_scale_inv")),
        "qwen3",
    ),
    "fp8-large-blocks-head": Case(
        {"quant_method": "fp8", "weight_block_size": [128, 48]}, lambda name: float8((128, 48), "weight_scale_inv")
    ),
}


def make_quantized(folder: Path, case: Case, seed: int = 0) -> tuple[Path, Path]:
    """The quantized checkpoint, and the one of floats."""
    quantized, floats = folder / "quantized", folder / "floats"
    make_checkpoint(floats, case.family, seed, **case.settings)
    make_checkpoint(quantized, case.family, seed, **case.settings)
    random = np.random.default_rng(seed)
    expected = load_file(floats / FILE)
    stored = dict(case.beside)
    for name, tensor in list(expected.items()):
        linear = name.removesuffix(".weight")
        make = case.make(linear) if linear.endswith(("_proj", "lm_head")) and name.endswith(".weight") else None
        if make is None:
            stored[name] = tensor
            continue
        made = make(random, *tensor.shape)
        expected[name] = made.weight
        stored |= {f"{linear}.{suffix}": packed.contiguous() for suffix, packed in made.tensors.items()}
    save_file(expected, floats / FILE, {"format": "pt"})
    save_file(stored, quantized / FILE, {"format": "pt"})
    write_config(quantized, quantization_config=case.config)
    return quantized, floats


def quantize_folder(folder: Path, said: dict[str, Any], make: Callable[[str], Make | None]) -> dict[str, torch.Tensor]:
    """Quantize the linears of the checkpoint in `folder`, of any family, in place. The floats that they stand for, by
    the names of their tensors. `make` is asked with the names of linears there."""
    config, random = ModelConfig.from_folder(folder), np.random.default_rng(0)
    checkpoint, tensors = Checkpoint(folder, config.spec), load_file(folder / FILE)
    floats: dict[str, torch.Tensor] = {}
    for path, linear in quantized_linears(config.spec):
        name = checkpoint.stored_name(f"{path}.weight")
        module = name.removesuffix(".weight")
        make_it = make(module)
        if make_it is None:
            continue
        made = make_it(random, linear.outputs, linear.inputs)
        floats[name] = (made.weight.T if linear.is_transposed else made.weight).contiguous()
        del tensors[name]
        tensors |= {f"{module}.{suffix}": packed.contiguous() for suffix, packed in made.tensors.items()}
    save_file(tensors, folder / FILE, {"format": "pt"})
    write_config(folder, quantization_config=said)
    return floats


def quantized_linears(spec: ModelSpec) -> Iterator[tuple[str, LinearSpec]]:
    """Whole path and description of each linear that may be quantized, but for the head. Routers stay as they are."""
    for number, layer in enumerate(spec.layers):
        exact = _exact_linears(layer.feed_forward)
        for linear in (*layer.linears(), *layer.expert_linears()):
            if linear not in exact:
                yield f"{layer_path(spec, number)}{linear.path}", linear
    if spec.token_inputs is not None:
        yield spec.token_inputs.projection.path, spec.token_inputs.projection


def _exact_linears(feed_forward: FeedForwardSpec | ExpertsSpec) -> tuple[LinearSpec | None, ...]:
    return (feed_forward.routing.router, feed_forward.shared_gate) if isinstance(feed_forward, ExpertsSpec) else ()


def write_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
