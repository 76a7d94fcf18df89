"""OLMo 2 and OLMo 3: norms after each block and over all queries and all keys; OLMo 3 with windows in most layers."""

from dataclasses import replace
from typing import Final

from ..description.config_fields import (
    FULL,
    SLIDING,
    Raw,
    flag,
    head_size,
    layer_types,
    layers_alike,
    number,
    positive,
    rope,
    said_of_rope,
    window,
)
from ..description.spec import AttentionSpec, LayerSpec, ModelSpec, NormSpec, RopeConfig
from .family import Family, gated_mlp, split_heads, text_model

OLMO3_THETA: Final = 500_000.0
FULL_EVERY: Final = 4
"""OLMo 3 has a layer without a window among so many."""


def _describe(raw: Raw, name: str) -> ModelSpec:
    num_layers, hidden_size = positive(raw, "num_hidden_layers"), positive(raw, "hidden_size")
    norm = NormSpec("model.norm", hidden_size, number(raw, "rms_norm_eps", 1e-5))
    if name == "Olmo2":
        return text_model(raw, [_layer(raw, norm, _heads(raw))] * layers_alike(raw), norm)
    raw = {"rope_theta": OLMO3_THETA} | dict(raw)
    default = [FULL if (number + 1) % FULL_EVERY == 0 else SLIDING for number in range(num_layers)]
    windows = {FULL: None, SLIDING: window(raw, 4096)}
    mixers = {kind: _heads(raw, length, _rope(raw, kind)) for kind, length in windows.items()}
    types = layer_types(raw, (FULL, SLIDING), default)
    return text_model(raw, [_layer(raw, norm, mixers[kind]) for kind in types], norm)


def _heads(raw: Raw, seen: int | None = None, rotary: RopeConfig | None = None) -> AttentionSpec:
    hidden_size, has_bias = positive(raw, "hidden_size"), flag(raw, "attention_bias")
    return split_heads(raw, hidden_size, input_bias=has_bias, output_bias=has_bias, window=seen, rotary=rotary)


def _layer(raw: Raw, norm: NormSpec, mixer: AttentionSpec) -> LayerSpec:
    query, key = (heads * mixer.head_dim for heads in (mixer.num_heads, mixer.num_kv_heads))
    return LayerSpec(
        mixer=replace(
            mixer,
            query_norm=NormSpec("self_attn.q_norm", query, norm.eps),
            key_norm=NormSpec("self_attn.k_norm", key, norm.eps),
        ),
        feed_forward=gated_mlp(raw, norm.size),
        mixer_norm=None,
        feed_forward_norm=None,
        mixer_output_norm=replace(norm, path="post_attention_layernorm"),
        feed_forward_output_norm=replace(norm, path="post_feedforward_layernorm"),
    )


def _rope(raw: Raw, kind: str) -> RopeConfig:
    """Of OLMo 3: rope_scaling is of layers without a window."""
    said = raw.get("rope_parameters") or {}
    if not set(said) <= {FULL, SLIDING}:
        raise ValueError(f"rope_parameters must have an entry for {FULL} and one for {SLIDING}, got {', '.join(said)}")
    scaling = said_of_rope({"rope_scaling": raw.get("rope_scaling")}) if kind == FULL else {}
    return rope(raw, head_size(raw), said=dict(said.get(kind) or {}) | dict(scaling))


FAMILY: Final = Family(
    names=("Olmo2", "Olmo3"),
    describe=_describe,
    hub={"Olmo2": ("allenai/OLMo-2-0425-1B-Instruct",), "Olmo3": ("allenai/Olmo-3-7B-Instruct",)},
)
