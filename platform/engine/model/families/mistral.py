"""Mistral, Ministral and the text parts of Mistral 3 and Ministral 3: Llama with sliding windows in all layers or some,
and in Ministral 3 with queries that grow with the position."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ..description.config_fields import FULL, SLIDING, Raw, layer_types, number, positive
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
    name = TEXT_MODELS.get(str(raw.get("model_type")), name)
    norm = NormSpec("model.norm", positive(raw, "hidden_size"), number(raw, "rms_norm_eps", 1e-6))
    default = None if name == "Ministral3" else 4096
    windows = {FULL: None, SLIDING: raw.get("sliding_window", default)}
    types = layer_types(raw, (FULL, SLIDING), [SLIDING] * positive(raw, "num_hidden_layers"))
    layers = [_layer(raw, norm, windows[kind], _query_scale(raw) if name == "Ministral3" else None) for kind in types]
    return replace(text_model(raw, layers, norm), renamed=NAMED, left_out=IMAGES)


def _layer(raw: Raw, norm: NormSpec, window: int | None, query_scale: QueryScale | None) -> LayerSpec:
    mixer = replace(split_heads(raw, norm.size, window=window), query_scale=query_scale)
    return pre_norm_layer(mixer, gated_mlp(raw, norm.size), norm)


def _query_scale(raw: Raw) -> QueryScale:
    said = raw.get("rope_parameters") or {}
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
