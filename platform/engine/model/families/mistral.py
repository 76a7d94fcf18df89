"""Mistral and Ministral: Llama with a sliding window in all layers, or in some."""

from typing import Final

from ..description.config_fields import FULL, SLIDING, Raw, layer_types, number, positive
from ..description.spec import ModelSpec, NormSpec
from .family import Family, gated_mlp, pre_norm_layer, split_heads, text_model


def _describe(raw: Raw, name: str) -> ModelSpec:
    hidden_size = positive(raw, "hidden_size")
    norm = NormSpec("model.norm", hidden_size, number(raw, "rms_norm_eps", 1e-6))
    windows = {FULL: None, SLIDING: raw.get("sliding_window", 4096)}
    layers = [
        pre_norm_layer(split_heads(raw, hidden_size, window=windows[kind]), gated_mlp(raw, hidden_size), norm)
        for kind in layer_types(raw, (FULL, SLIDING), [SLIDING] * positive(raw, "num_hidden_layers"))
    ]
    return text_model(raw, layers, norm)


FAMILY: Final = Family(
    names=("Mistral", "Ministral"),
    describe=_describe,
    hub={
        "Mistral": ("mistralai/Mistral-7B-Instruct-v0.3",),
        "Ministral": ("mistralai/Ministral-8B-Instruct-2410",),
    },
)
