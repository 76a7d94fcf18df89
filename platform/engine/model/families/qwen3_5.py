"""Qwen3.5 and 3.6, dense: three gated delta nets for each layer of gated attention with partly rotated heads."""

from typing import Final

from ..description.config_fields import (
    FULL,
    Raw,
    activation,
    flag,
    head_size,
    heads,
    layer_types,
    number,
    positive,
    rope,
)
from ..description.feed_forward import ExpertsSpec, FeedForwardSpec
from ..description.spec import AttentionSpec, DeltaNetSpec, LayerSpec, LinearSpec, MixerSpec, ModelSpec, NormSpec
from .family import Family, gated_mlp, text_model

LINEAR: Final = "linear_attention"
"""What transformers calls a layer with a delta net."""
INTERVAL: Final = 4
ROTATED: Final = 0.25
"""Share of a head, where config.json does not say."""
LEFT_OUT: Final = {
    "model.visual.": "the vision encoder",
    "visual.": "the vision encoder",
    "mtp.": "the layers that predict several tokens at once",
}


def _describe(raw: Raw, name: str) -> ModelSpec:
    return recurrent_model(raw, gated_mlp(raw, positive(raw, "hidden_size")))


def recurrent_model(raw: Raw, feed_forward: FeedForwardSpec | ExpertsSpec) -> ModelSpec:
    """All of Qwen3.5 but for what its layers have behind their mixers."""
    size, eps = positive(raw, "hidden_size"), number(raw, "rms_norm_eps", 1e-6)
    mixers: dict[str, MixerSpec] = {FULL: _attention(raw, size, eps), LINEAR: _delta_net(raw, size, eps)}
    layers = [
        LayerSpec(
            mixer=mixers[kind],
            feed_forward=feed_forward,
            mixer_norm=_norm("input_layernorm", size, eps),
            feed_forward_norm=_norm("post_attention_layernorm", size, eps),
        )
        for kind in _kinds(raw)
    ]
    return text_model(
        raw,
        layers,
        _norm("model.norm", size, eps),
        renamed={"model.language_model.": "model.", "language_model.": "model."},
        left_out=LEFT_OUT,
    )


def _kinds(raw: Raw) -> list[str]:
    count, interval = positive(raw, "num_hidden_layers"), positive(raw, "full_attention_interval", INTERVAL)
    default = [LINEAR if (layer + 1) % interval else FULL for layer in range(count)]
    kinds = layer_types(raw, (FULL, LINEAR), default)
    if FULL not in kinds:
        raise ValueError(f"layer_types has no {FULL}; a model of {LINEAR} alone is not supported")
    return kinds


def _norm(path: str, size: int, eps: float) -> NormSpec:
    return NormSpec(path, size, eps, adds_one=True)


def _attention(raw: Raw, size: int, eps: float) -> AttentionSpec:
    (num_heads, num_kv_heads), head_dim, has_bias = heads(raw), head_size(raw, 256), flag(raw, "attention_bias")
    query, key = num_heads * head_dim, num_kv_heads * head_dim
    said = {"partial_rotary_factor": ROTATED} | dict(raw)
    return AttentionSpec(
        inputs=tuple(
            LinearSpec(f"self_attn.{part}_proj", size, outputs, has_bias)
            for part, outputs in (("q", 2 * query), ("k", key), ("v", key))
        ),
        output=LinearSpec("self_attn.o_proj", query, size, has_bias),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        # Text has one position where images have three: all sections of its rope turn alike.
        rope=rope(said, head_dim, may_be_partial=True),
        query_norm=_norm("self_attn.q_norm", head_dim, eps),
        key_norm=_norm("self_attn.k_norm", head_dim, eps),
        has_output_gate=True,
    )


def _delta_net(raw: Raw, size: int, eps: float) -> DeltaNetSpec:
    key_heads, value_heads = positive(raw, "linear_num_key_heads", 16), positive(raw, "linear_num_value_heads", 32)
    key_dim, value_dim = positive(raw, "linear_key_head_dim", 128), positive(raw, "linear_value_head_dim", 128)
    if value_heads % key_heads:
        raise ValueError(f"linear_num_value_heads {value_heads} is not a multiple of linear_num_key_heads {key_heads}")
    # It also acts behind the convolution and in the gate.
    activation(raw, "hidden_act", "silu", ("silu",))
    keys, values = key_heads * key_dim, value_heads * value_dim
    outputs = {"qkv": 2 * keys + values, "z": values, "b": value_heads, "a": value_heads}
    return DeltaNetSpec(
        inputs=tuple(LinearSpec(f"linear_attn.in_proj_{part}", size, width) for part, width in outputs.items()),
        output=LinearSpec("linear_attn.out_proj", values, size),
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_head_dim=key_dim,
        value_head_dim=value_dim,
        kernel_size=positive(raw, "linear_conv_kernel_dim", 4),
        norm=NormSpec("linear_attn.norm", value_dim, eps),
    )


FAMILY: Final = Family(
    names=("Qwen3_5",),
    describe=_describe,
    text_of={"Qwen3_5ForConditionalGeneration": {"qwen3_5_text": "Qwen3_5"}},
    hub={"Qwen3_5": ("Qwen/Qwen3.5-0.8B",)},
)
