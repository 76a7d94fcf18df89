"""Llama 2 to 3.3 and what is built like it."""

from typing import Final

from ..description.config_fields import Raw, flag, number, positive
from ..description.spec import ModelSpec, NormSpec
from .family import Family, gated_mlp, pre_norm_layer, split_heads, text_model


def _describe(raw: Raw, name: str) -> ModelSpec:
    hidden_size, has_bias = positive(raw, "hidden_size"), flag(raw, "attention_bias")
    norm = NormSpec("model.norm", hidden_size, number(raw, "rms_norm_eps", 1e-6))
    mixer = split_heads(raw, hidden_size, input_bias=has_bias, output_bias=has_bias)
    layer = pre_norm_layer(mixer, gated_mlp(raw, hidden_size, flag(raw, "mlp_bias")), norm)
    return text_model(raw, [layer] * positive(raw, "num_hidden_layers"), norm)


FAMILY: Final = Family(
    names=("Llama",),
    describe=_describe,
    hub={"Llama": ("meta-llama/Llama-3.2-1B-Instruct", "TinyLlama/TinyLlama-1.1B-Chat-v1.0")},
)
