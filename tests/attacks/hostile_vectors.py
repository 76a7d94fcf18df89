"""DoRA, biases and IA3: vectors over outputs that are poison, that do not fit, or that are no vectors."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.lora.adapters import BASE, Tensors, make_tensors
from tests.lora.signatures import module_path

Case = tuple[str, str, dict[str, Any], Tensors]
"""Name, a part of the one message that must refuse it, the changes of a good LoRA's configuration, and the tensors."""

IA3 = {"peft_type": "IA3", "target_modules": ["q_proj", "down_proj"], "feedforward_modules": []}
PARTS = {
    "dora": ("lora_magnitude_vector", {"use_dora": True}),
    "lora-bias": ("lora_B.bias", {"lora_bias": True}),
    "base-bias": ("base_layer.bias", {"bias": "lora_only"}),
    "ia3": ("ia3_l", IA3),
}
"""kind -> (name of its vectors, its configuration)"""
SHAPES = {"scalar": (1,), "matrix": (24, 24), "four-dimensions": (1, 1, 24, 1), "one-too-many": (25,)}


def hostile_vectors() -> Iterator[Case]:
    for kind, (part, changes) in PARTS.items():
        for name, value in (("nan", np.nan), ("infinity", -np.inf), ("largest", 3e38)):
            poison = np.full((24, 1) if kind == "ia3" else 24, value, np.float32)
            yield f"{kind}-{name}", "NaN, infinite or above", changes, with_first(kind, part, poison)
        for name, shape in SHAPES.items():
            reason = f"{part.rsplit('.', 1)[-1]} is {list(shape)}, not [24"
            yield f"{kind}-{name}", reason, changes, with_first(kind, part, np.ones(shape, np.float32))
    for key in ("use_dora", "lora_bias"):
        for value in ("yes", 1, ["q_proj"], {"q_proj": True}):
            reason = f"{key} is {value!r}; it must be true or false"
            yield f"{key}-{value!a}", reason, {key: value}, make_tensors()
    announced: dict[str, Any] = {"velora_config": {"num_groups": 4}}
    for module, changes, words in (("q_proj", {}, ", which"), ("v_proj", announced, " without a LoRA")):
        projection = {f"base_model.model.{module_path(0, module)}.lora_velora_embed": np.ones(4, np.float32)}
        yield f"velora-{module}", f"VeLoRA's (velora_config){words}", changes, make_tensors() | projection
    good = np.full((24, 1), 1.5, np.float32)
    for value in ("q_proj", ".*"):
        reason = f"feedforward_modules is {value!r}: patterns are not supported"
        yield f"feedforward-{value}", reason, IA3 | {"feedforward_modules": value}, with_first("ia3", "ia3_l", good)
    for bias in ("ALL", True, ["all"], 1, "none; import os"):
        yield f"bias-{bias!a}", f"bias is {bias!r}", {"bias": bias}, make_tensors()


def with_first(kind: str, part: str, vector: NDArray[np.float32]) -> Tensors:
    """Good vectors of that name, but for the one of the first q_proj."""
    tensors = make_tensors() if kind != "ia3" else {}
    for layer in range(BASE.num_layers):
        for module in ("q_proj", "down_proj"):
            outputs = BASE.linears[module][1]
            good = np.full((outputs, 1) if kind == "ia3" else outputs, 1.5, np.float32)
            tensors[f"base_model.model.{module_path(layer, module)}.{part}"] = good
    return tensors | {f"base_model.model.{module_path(0, 'q_proj')}.{part}": vector}
