"""The inputs that a layer's linears read: which linears read each of them, and which norm or linear makes it."""

from collections.abc import Sequence
from typing import Final

import torch

from .config import ModelConfig
from .description.spec import LinearSpec

QKV: Final = "self_attn.qkv"
OUTPUT: Final = "self_attn.o_proj"
GATE_UP: Final = "mlp.gate_up"
DOWN: Final = "mlp.down_proj"
INPUTS: Final = (QKV, OUTPUT, GATE_UP, DOWN)
"""The four inputs that a layer's linears read."""
NORMS: Final = {QKV: "input_layernorm", GATE_UP: "post_attention_layernorm"}
LINEARS: Final = {OUTPUT: "self_attn.v_proj", DOWN: "mlp.up_proj"}


def linears_of(place: str) -> tuple[str, ...]:
    """The linears that read this input."""
    shared = {QKV: ("q_proj", "k_proj", "v_proj"), GATE_UP: ("gate_proj", "up_proj")}
    if place not in shared:
        return (place,)
    return tuple(f"{place.split('.')[0]}.{kind}" for kind in shared[place])


PLACES: Final = {("q_proj", "k_proj", "v_proj"): QKV, ("o_proj",): OUTPUT, ("gate_proj", "up_proj"): GATE_UP}
"""Linears that read one input -> its name, where it is no linear's."""


def place_of(group: Sequence[LinearSpec]) -> str:
    """The name of the input that these linears read."""
    return PLACES.get(tuple(linear.kind for linear in group), group[0].path)


def made_by(place: str, scales: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Scales of inputs [in] as those of the outputs of the linear that makes them: one of each value head's readers."""
    if place != OUTPUT:
        return scales
    return scales.reshape(config.attention.num_kv_heads, -1, config.attention.head_dim)[:, 0].flatten()
