"""Granite 3, and Granite 4 without mamba layers and experts: Llama with multipliers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ..description.config_fields import FULL, Raw, above_zero, flag, layer_types, layers_alike, number, positive
from ..description.spec import AttentionSpec, FeedForwardSpec, HeadSpec, LinearSpec, ModelSpec, NormSpec
from .family import Family, as_one, gated_mlp, pre_norm_layer, split_heads, text_model

MIXERS: Final = ("attention", FULL)
"""What Granite 4 calls its layers that attend."""
POSITIONS: Final[Mapping[object, bool]] = {"rope": True, "nope": False, None: False}
"""Of Granite 4: whether heads are turned."""


def _describe(raw: Raw, name: str) -> ModelSpec:
    hidden_size = positive(raw, "hidden_size")
    norm = NormSpec("model.norm", hidden_size, number(raw, "rms_norm_eps", 1e-6))
    mixer, feed_forward = (_third if name == "Granite" else _fourth)(raw, hidden_size)
    mixer = replace(mixer, scale=above_zero({"attention_multiplier": 1.0} | dict(raw), "attention_multiplier"))
    layer = pre_norm_layer(mixer, feed_forward, norm)
    layer = replace(layer, residual_scale=number(raw, "residual_multiplier", 1.0))
    count = layers_alike(raw) if name == "Granite" else len(_kinds(raw))
    model = text_model(raw, [layer] * count, norm)
    return replace(
        model,
        embedding=replace(model.embedding, scale=number(raw, "embedding_multiplier", 1.0)),
        head=HeadSpec(is_tied=flag(raw, "tie_word_embeddings"), scale=1.0 / above_zero(raw, "logits_scaling", 1.0)),
    )


def _third(raw: Raw, hidden_size: int) -> tuple[AttentionSpec, FeedForwardSpec]:
    return _heads(raw, hidden_size), gated_mlp(raw, hidden_size, flag(raw, "mlp_bias"))


def _kinds(raw: Raw) -> list[str]:
    return layer_types(raw, MIXERS, ["mamba"] * positive(raw, "num_hidden_layers"))


def _fourth(raw: Raw, hidden_size: int) -> tuple[AttentionSpec, FeedForwardSpec]:
    experts = 8 if raw.get("num_local_experts") is None else raw["num_local_experts"]
    if experts:
        raise ValueError(f"num_local_experts is {experts!r}: experts are not supported for this family, 0 is")
    kind = raw.get("position_embedding_type")
    if kind not in POSITIONS:
        raise ValueError(f"position_embedding_type {kind!r} is not supported; supported: rope, nope")
    mixer = _heads(raw, hidden_size)
    size = positive(raw, "shared_intermediate_size", 1024)
    gated = gated_mlp(dict(raw) | {"intermediate_size": size}, hidden_size)
    feed_forward = replace(
        gated,
        inputs=as_one("shared_mlp.input_linear", gated.inputs),
        output=LinearSpec("shared_mlp.output_linear", size, hidden_size),
    )
    return mixer if POSITIONS[kind] else replace(mixer, rope=None), feed_forward


def _heads(raw: Raw, hidden_size: int) -> AttentionSpec:
    has_bias = flag(raw, "attention_bias")
    return split_heads(raw, hidden_size, input_bias=has_bias, output_bias=has_bias)


FAMILY: Final = Family(
    names=("Granite", "GraniteMoeHybrid"),
    describe=_describe,
    hub={
        "Granite": ("ibm-granite/granite-3.3-2b-instruct",),
        "GraniteMoeHybrid": ("ibm-granite/granite-4.0-micro", "ibm-granite/granite-4.0-350m"),
    },
)
