"""Gemma 4: an input of its own for each layer, keys and values shared between layers, heads of two sizes, and experts
beside a feed-forward for all tokens."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ..description.config_fields import (
    FULL,
    SLIDING,
    Raw,
    activation,
    flag,
    layer_types,
    number,
    positive,
    rope,
    rounded,
    stored_dtype,
)
from ..description.feed_forward import BranchNormsSpec, ExpertsSpec, RoutingSpec, StackedSpec
from ..description.spec import (
    AttentionSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    LayerSpec,
    LinearSpec,
    ModelSpec,
    NormSpec,
    TokenInputSpec,
    TokenInputsSpec,
)
from .family import Family, gated_mlp, split_heads, text_model
from .gemma import sandwich_layer, scaled_model

DEFAULTS: Final[Mapping[str, Any]] = {
    "vocab_size": 262_144,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
DEFAULTS_UNIFIED: Final = {
    **DEFAULTS,
    "max_position_embeddings": 262_144,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
}
GLOBAL_HEAD: Final = 512
WINDOW_PATTERN: Final = 6
"""Each sixth layer sees all tokens, where config.json does not say."""
ROPES: Final[Mapping[str, Raw]] = {
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
}
OWN_FIELDS: Final = frozenset({"head_dim", "num_key_value_heads"})
"""That a layer may have of its own."""
SHARED: Final = "keys and values of layers that read those of others"


def _describe(raw: Raw, name: str) -> ModelSpec:
    _refuse_what_is_not_computed(raw, name)
    hidden_size = positive(raw, "hidden_size")
    norm = NormSpec("model.norm", hidden_size, number(raw, "rms_norm_eps", 1e-6))
    kinds = _kinds(raw)
    layers = [_layer(raw, place, kinds, norm) for place in range(len(kinds))]
    spec = scaled_model(text_model(raw, layers, norm, tied=True), raw)
    unused = {
        f"{spec.layers_path}.{place}.self_attn.{part}.": SHARED
        for place in range(_first_shared(raw), len(kinds))
        for part in ("k_proj", "v_proj", "k_norm", "v_norm")
    }
    return replace(spec, token_inputs=_token_inputs(raw, norm), left_out={**spec.left_out, **unused})


def _refuse_what_is_not_computed(raw: Raw, name: str) -> None:
    if flag(raw, "enable_moe_block") and name != "Gemma4":
        raise ValueError(f"enable_moe_block is not supported for {name}, which has no experts; it is for Gemma4")
    if raw.get("use_bidirectional_attention") not in (None, "vision"):
        raise ValueError(
            f"use_bidirectional_attention {raw['use_bidirectional_attention']!r} is not supported: each token sees "
            "those before it alone"
        )


def _kinds(raw: Raw) -> list[str]:
    """What each layer is; the last one sees all tokens whatever config.json says, as in transformers."""
    num_layers = positive(raw, "num_hidden_layers")
    default = [SLIDING if place % WINDOW_PATTERN else FULL for place in range(1, num_layers + 1)]
    return [*layer_types(raw, (FULL, SLIDING), default)[:-1], FULL]


def _first_shared(raw: Raw) -> int:
    """From this layer on, layers read keys and values of earlier ones."""
    num_layers, shared = positive(raw, "num_hidden_layers"), int(raw.get("num_kv_shared_layers") or 0)
    if not 0 <= shared < num_layers:
        raise ValueError(f"num_kv_shared_layers is {shared}; it must be less than num_hidden_layers, {num_layers}")
    return num_layers - shared


def _layer(raw: Raw, place: int, kinds: list[str], norm: NormSpec) -> LayerSpec:
    is_shared = place >= _first_shared(raw)
    width = positive(raw, "intermediate_size") * (2 if is_shared and flag(raw, "use_double_wide_mlp") else 1)
    feed_forward = gated_mlp(dict(raw) | {"intermediate_size": width}, norm.size, act="hidden_activation")
    layer = sandwich_layer(_attention(raw, place, kinds, norm.eps), feed_forward, norm)
    layer = replace(layer, scale="layer_scalar", token_input=_token_input(raw, norm))
    if not flag(raw, "enable_moe_block"):
        return layer
    return replace(layer, feed_forward=_experts(raw, feed_forward, norm), feed_forward_norm=None)


def _experts(raw: Raw, dense: FeedForwardSpec, norm: NormSpec) -> ExpertsSpec:
    """Beside the feed-forward for all tokens."""
    size = positive(raw, "moe_intermediate_size")
    expert = FeedForwardSpec(
        inputs=(LinearSpec("gate_proj", norm.size, size), LinearSpec("up_proj", norm.size, size)),
        output=LinearSpec("down_proj", size, norm.size),
        activation=dense.activation,
        is_gated=True,
    )
    routing = RoutingSpec(
        router=LinearSpec("router.proj", norm.size, positive(raw, "num_experts")),
        experts_per_token=positive(raw, "top_k_experts"),
        scores="softmax",
        normalizes=True,
        factors="router.per_expert_scale",
    )
    norms = BranchNormsSpec(
        router="router.scale",
        experts=replace(norm, path="pre_feedforward_layernorm_2"),
        shared=replace(norm, path="pre_feedforward_layernorm"),
        experts_output=replace(norm, path="post_feedforward_layernorm_2"),
        shared_output=replace(norm, path="post_feedforward_layernorm_1"),
    )
    stacked = StackedSpec(module="experts")
    return ExpertsSpec(
        routing=routing, path="experts", expert=expert, stacked=stacked, shared=dense, branch_norms=norms
    )


def _attention(raw: Raw, place: int, kinds: list[str], eps: float) -> AttentionSpec:
    kind, own, has_bias = kinds[place], _own_fields(raw, place, kinds[place]), flag(raw, "attention_bias")
    said = (raw.get("rope_parameters") or ROPES).get(kind)
    if not isinstance(said, Mapping):
        raise ValueError(f"rope_parameters must have an entry for {kind}")
    mixer = split_heads(
        own,
        positive(raw, "hidden_size"),
        input_bias=has_bias,
        output_bias=has_bias,
        rotary=rope(raw, positive(own, "head_dim"), said=said),
        head_norm=NormSpec("", positive(own, "head_dim"), eps),
        window=positive(raw, "sliding_window") if kind == SLIDING else None,
    )
    mixer = replace(mixer, scale=1.0, value_norm_eps=eps)
    if place >= _first_shared(raw):
        source = _source(raw, place, kinds)
        return replace(mixer, inputs=mixer.inputs[:1], key_norm=None, value_norm_eps=None, keys_of=source)
    if flag(raw, "attention_k_eq_v") and kind == FULL:
        return replace(mixer, inputs=mixer.inputs[:2], values_are_keys=True)
    return mixer


def _source(raw: Raw, place: int, kinds: list[str]) -> int:
    """The layer whose keys and values this one reads."""
    alike = [earlier for earlier in range(_first_shared(raw)) if kinds[earlier] == kinds[place]]
    if not alike:
        raise ValueError(f"num_kv_shared_layers leaves no {kinds[place]} layer with keys and values of its own")
    source = alike[-1]
    if _own_fields(raw, source, kinds[source]) != _own_fields(raw, place, kinds[place]):
        raise ValueError(f"layers {source} and {place} share keys and values, and per_layer_config gives them others")
    return source


def _own_fields(raw: Raw, place: int, kind: str) -> Raw:
    """config.json with what this layer has of its own. transformers writes per_layer_config; checkpoints before that
    have other fields for all layers that see all tokens."""
    said = raw.get("per_layer_config")
    if said is not None:
        if not isinstance(said, Mapping):
            raise ValueError(f"per_layer_config must be an object with an entry for a layer, got {said!r}")
        own = dict(said.get(str(place)) or {})
    else:
        own = _of_global_layers(raw) if kind == FULL else {}
    if not set(own) <= OWN_FIELDS:
        raise ValueError(f"per_layer_config may give {', '.join(sorted(OWN_FIELDS))}, got {', '.join(sorted(own))}")
    return dict(raw) | own


def _of_global_layers(raw: Raw) -> dict[str, Any]:
    own = {"head_dim": positive(raw, "global_head_dim", GLOBAL_HEAD)}
    if flag(raw, "attention_k_eq_v") and raw.get("num_global_key_value_heads") is not None:
        own["num_key_value_heads"] = positive(raw, "num_global_key_value_heads")
    return own


def _token_input(raw: Raw, norm: NormSpec) -> TokenInputSpec | None:
    size = raw.get("hidden_size_per_layer_input")
    if not size:
        return None
    size = positive(raw, "hidden_size_per_layer_input")
    return TokenInputSpec(
        gate=LinearSpec("per_layer_input_gate", norm.size, size),
        output=LinearSpec("per_layer_projection", size, norm.size),
        activation=activation(raw, "hidden_activation", "gelu_pytorch_tanh"),
        norm=replace(norm, path="post_per_layer_input_norm"),
    )


def _token_inputs(raw: Raw, norm: NormSpec) -> TokenInputsSpec | None:
    if not raw.get("hidden_size_per_layer_input"):
        return None
    size, vocab_size = positive(raw, "hidden_size_per_layer_input"), positive(raw, "vocab_size")
    rows, width = positive(raw, "vocab_size_per_layer_input", 262_144), positive(raw, "num_hidden_layers") * size
    if rows < vocab_size:
        raise ValueError(f"vocab_size_per_layer_input {rows} is less than vocab_size {vocab_size}")
    return TokenInputsSpec(
        rows=EmbeddingSpec(
            path="model.embed_tokens_per_layer",
            vocab_size=rows,
            size=width,
            scale=rounded(size**0.5, stored_dtype(raw)),
        ),
        projection=LinearSpec("model.per_layer_model_projection", norm.size, width),
        projection_scale=norm.size**-0.5,
        norm=NormSpec("model.per_layer_projection_norm", size, norm.eps),
        scale=2.0**-0.5,
    )


FAMILY: Final = Family(
    names=("Gemma4", "Gemma4Unified"),
    describe=_describe,
    text_of={
        "Gemma4ForConditionalGeneration": {"gemma4_text": "Gemma4"},
        "Gemma4UnifiedForConditionalGeneration": {"gemma4_unified_text": "Gemma4Unified"},
    },
    hub={
        "Gemma4": (
            "google/gemma-4-E2B-it",
            "google/gemma-4-E4B-it",
            "google/gemma-4-31B-it",
            "google/gemma-4-26B-A4B-it",
        ),
        "Gemma4Unified": ("google/gemma-4-12B-it",),
    },
    defaults={"Gemma4": DEFAULTS, "Gemma4Unified": DEFAULTS_UNIFIED},
)
