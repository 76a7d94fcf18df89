"""Phi-3 and Phi-4: queries, keys and values are one linear, and so are gate and up; longrope for long texts."""

from dataclasses import replace
from typing import Final

from ..description.config_fields import (
    FULL,
    SLIDING,
    Raw,
    head_size,
    layers_alike,
    number,
    positive,
    rope,
    said_of_rope,
    window,
)
from ..description.spec import ModelSpec, NormSpec, RopeConfig
from .family import Family, as_one, gated_mlp, pre_norm_layer, split_heads, text_model

OLD_NAMES: Final = ("su", "yarn")
"""What longrope was called before."""
ROPES: Final = ("default", "longrope")
ORIGINAL_LENGTH: Final = 4096


def _describe(raw: Raw, name: str) -> ModelSpec:
    hidden_size = positive(raw, "hidden_size")
    norm = NormSpec("model.norm", hidden_size, number(raw, "rms_norm_eps", 1e-5))
    seen = window(raw)
    mixer = split_heads(raw, hidden_size, window=seen, rotary=_rope(raw))
    feed_forward = gated_mlp(raw, hidden_size)
    layer = pre_norm_layer(
        replace(mixer, inputs=as_one("self_attn.qkv_proj", mixer.inputs)),
        replace(feed_forward, inputs=as_one("mlp.gate_up_proj", feed_forward.inputs)),
        norm,
    )
    return text_model(raw, [layer] * layers_alike(raw, FULL if seen is None else SLIDING), norm)


def _rope(raw: Raw) -> RopeConfig:
    said = dict(said_of_rope(raw))
    kind = said.pop("type", None)
    kind = said.pop("rope_type", None) or kind or "default"
    kind = "longrope" if kind in OLD_NAMES else kind
    if kind not in ROPES:
        raise ValueError(f"rope scaling {kind!r} is not supported for Phi; supported: {', '.join(ROPES)}")
    said["original_max_position_embeddings"] = positive(raw, "original_max_position_embeddings", ORIGINAL_LENGTH)
    return rope(raw, head_size(raw), said=said | {"rope_type": kind}, may_be_partial=True)


FAMILY: Final = Family(
    names=("Phi3",),
    describe=_describe,
    hub={"Phi3": ("microsoft/Phi-3.5-mini-instruct", "microsoft/Phi-4-mini-instruct", "microsoft/phi-4")},
)
