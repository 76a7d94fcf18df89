"""gpt-oss: attention with sinks, every second layer with a window; experts with biases behind a clamped SwiGLU."""

from dataclasses import replace
from typing import Any, Final

from ...description.config_fields import FULL, SLIDING, Raw, flag, layer_types, number, positive
from ...description.feed_forward import ExpertsSpec, FeedForwardSpec, LinearSpec, RoutingSpec, StackedSpec
from ...description.spec import AttentionSpec, LayerSpec, ModelSpec, NormSpec
from ..family import Family, pre_norm_layer, split_heads, text_model
from .experts import count_of

HEAD: Final = 64
WINDOW: Final = 128
DEFAULTS: Final[dict[str, Any]] = {"max_position_embeddings": 131072, "rope_theta": 150_000.0}
ROPE: Final[Raw] = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
"""Where config.json does not say."""
CLAMPED: Final = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}
"""The numbers of what is computed here."""


def _describe(raw: Raw, name: str) -> ModelSpec:
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or ROPE
    raw = DEFAULTS | dict(raw) | {"rope_parameters": scaling}
    norm = NormSpec("model.norm", positive(raw, "hidden_size"), number(raw, "rms_norm_eps", 1e-5))
    kinds = [(SLIDING, FULL)[layer % 2] for layer in range(positive(raw, "num_hidden_layers"))]
    windows = {FULL: None, SLIDING: positive(raw, "sliding_window", WINDOW)}
    layers = [_layer(raw, norm, windows[kind]) for kind in layer_types(raw, (FULL, SLIDING), kinds)]
    return text_model(raw, layers, norm)


def _layer(raw: Raw, norm: NormSpec, window: int | None) -> LayerSpec:
    return pre_norm_layer(_mixer(raw, norm, window), _experts(raw, norm.size), norm)


def _mixer(raw: Raw, norm: NormSpec, window: int | None) -> AttentionSpec:
    has_bias = flag(raw, "attention_bias", True)
    heads = split_heads(raw, norm.size, head_dim=HEAD, input_bias=has_bias, output_bias=has_bias, window=window)
    return replace(heads, sinks="self_attn.sinks")


def _experts(raw: Raw, hidden_size: int) -> ExpertsSpec:
    for name, value in CLAMPED.items():
        if number(raw, name, value) != value:
            raise ValueError(f"{name} {raw[name]!r} is not supported; supported: {value}")
    count, size = count_of(raw, ("num_local_experts", "num_experts"), 128), positive(raw, "intermediate_size")
    expert = FeedForwardSpec(
        inputs=(LinearSpec("gate_proj", hidden_size, size, True), LinearSpec("up_proj", hidden_size, size, True)),
        output=LinearSpec("down_proj", size, hidden_size, True),
        activation="clamped_swiglu",
        is_gated=True,
    )
    routing = RoutingSpec(
        router=LinearSpec("mlp.router", hidden_size, count, True),
        experts_per_token=count_of(raw, ("num_experts_per_tok", "experts_per_token"), 4),
        scores="softmax_of_chosen",
    )
    stacked = StackedSpec(is_transposed=True, is_interleaved=True)
    return ExpertsSpec(routing=routing, path="mlp.experts", expert=expert, stacked=stacked)


FAMILY: Final = Family(
    names=("GptOss",), describe=_describe, hub={"GptOss": ("openai/gpt-oss-20b", "openai/gpt-oss-120b")}
)
