"""Llama 2 to 3.3 and what is built like it, and SmolLM3: Llama with layers that know no positions."""

from dataclasses import replace
from typing import Final

from ..description.config_fields import FULL, SLIDING, Raw, flag, layer_types, layers_alike, number, positive, window
from ..description.spec import LayerSpec, ModelSpec, NormSpec
from .family import Family, gated_mlp, pre_norm_layer, split_heads, text_model

SMOLLM_THETA: Final = 2_000_000.0


def _describe(raw: Raw, name: str) -> ModelSpec:
    if name == "Llama":
        return text_model(raw, [_layer(raw)] * layers_alike(raw), _norm(raw))
    num_layers = positive(raw, "num_hidden_layers")
    raw = {"rope_theta": SMOLLM_THETA} | dict(raw)
    has_rope = _layers_with_rope(raw, num_layers)
    windows = {FULL: None, SLIDING: window(raw)}
    slides = flag(raw, "use_sliding_window") and windows[SLIDING] is not None
    default = [SLIDING if slides and not rope else FULL for rope in has_rope]
    types = layer_types(raw, (FULL, SLIDING), default)
    layers = [_layer(raw, windows[kind], rope) for kind, rope in zip(types, has_rope, strict=True)]
    return text_model(raw, layers, _norm(raw), tied=True)


def _norm(raw: Raw) -> NormSpec:
    return NormSpec("model.norm", positive(raw, "hidden_size"), number(raw, "rms_norm_eps", 1e-6))


def _layer(raw: Raw, length: int | None = None, has_rope: bool = True) -> LayerSpec:
    hidden_size, has_bias = positive(raw, "hidden_size"), flag(raw, "attention_bias")
    mixer = split_heads(raw, hidden_size, input_bias=has_bias, output_bias=has_bias, window=length)
    mixer = mixer if has_rope else replace(mixer, rope=None)
    return pre_norm_layer(mixer, gated_mlp(raw, hidden_size, flag(raw, "mlp_bias")), _norm(raw))


def _layers_with_rope(raw: Raw, num_layers: int) -> list[bool]:
    """`no_rope_layers` has a 1 for each layer that does turn its heads."""
    said = raw.get("no_rope_layers")
    if said is None:
        interval = positive(raw, "no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if not isinstance(said, list) or len(said) < num_layers or any(one not in (0, 1) for one in said):
        raise ValueError(f"no_rope_layers must be a list of {num_layers} ones and zeros, one for each layer")
    return [bool(one) for one in said[:num_layers]]


FAMILY: Final = Family(
    names=("Llama", "SmolLM3"),
    describe=_describe,
    hub={
        "Llama": ("meta-llama/Llama-3.2-1B-Instruct", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"),
        "SmolLM3": ("HuggingFaceTB/SmolLM3-3B",),
    },
)
