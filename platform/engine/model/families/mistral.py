"""Mistral, Ministral and the text parts of Mistral 3 and Ministral 3: Llama with sliding windows in all layers or some,
and in Ministral 3 with queries that grow with the position."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ..description.config_fields import (
    FULL,
    SLIDING,
    Raw,
    layer_types,
    number,
    positive,
    said_of_rope,
    window,
)
from ..description.spec import LayerSpec, ModelSpec, NormSpec, QueryScale
from .family import Family, gated_mlp, pre_norm_layer, split_heads, text_model

TEXT_MODELS: Final[Mapping[str, str]] = {"mistral": "Mistral", "ministral": "Ministral", "ministral3": "Ministral3"}
"""By model_type: Mistral 3 has one of these as its part."""
NAMED: Final[Mapping[str, str]] = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "language_model.": "model.",
}
IMAGES: Final[Mapping[str, str]] = {
    f"{start}{part}.": words
    for start in ("", "model.")
    for part, words in (("vision_tower", "the vision encoder"), ("multi_modal_projector", "the projector of images"))
}


def _describe(raw: Raw, name: str) -> ModelSpec:
    size = positive(raw, "hidden_size")
    if name == "Ministral3":
        norm = NormSpec("model.norm", size, number(raw, "rms_norm_eps", 1e-5))
        layers = [_layer(raw, norm, window(raw), _query_scale(raw))] * _layers_alike(raw)
    else:
        norm = NormSpec("model.norm", size, number(raw, "rms_norm_eps", 1e-6))
        windows = {FULL: None, SLIDING: window(raw, 4096)}
        types = layer_types(raw, (FULL, SLIDING), [SLIDING] * positive(raw, "num_hidden_layers"))
        layers = [_layer(raw, norm, windows[kind]) for kind in types]
    return replace(text_model(raw, layers, norm), renamed=NAMED, left_out=IMAGES)


def _layers_alike(raw: Raw) -> int:
    """How many layers Ministral 3 has. transformers gives the window to all."""
    seen = window(raw)
    own = FULL if seen is None else SLIDING
    types = layer_types(raw, (FULL, SLIDING), [own] * positive(raw, "num_hidden_layers"))
    if set(types) != {own}:
        raise ValueError(
            f"layer_types has other layers than {own}, and sliding_window is {seen}; this family has one kind of layers"
        )
    return len(types)


def _layer(raw: Raw, norm: NormSpec, seen: int | None, query_scale: QueryScale | None = None) -> LayerSpec:
    mixer = replace(split_heads(raw, norm.size, window=seen), query_scale=query_scale)
    return pre_norm_layer(mixer, gated_mlp(raw, norm.size), norm)


def _query_scale(raw: Raw) -> QueryScale:
    said = said_of_rope(raw)
    return QueryScale(number(said, "llama_4_scaling_beta"), positive(said, "original_max_position_embeddings"))


FAMILY: Final = Family(
    names=("Mistral", "Ministral", "Ministral3"),
    describe=_describe,
    text_of={"Mistral3ForConditionalGeneration": TEXT_MODELS},
    hub={
        "Mistral": ("mistralai/Mistral-7B-Instruct-v0.3", "mistralai/Mistral-Small-3.1-24B-Instruct-2503"),
        "Ministral": ("mistralai/Ministral-8B-Instruct-2410",),
        "Ministral3": ("mistralai/Ministral-3-3B-Instruct-2512", "mistralai/Ministral-3-8B-Base-2512"),
    },
)
