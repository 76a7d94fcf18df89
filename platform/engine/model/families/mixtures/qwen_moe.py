"""Qwen 1.5, 2 and 3 with experts: their attention as without; the former with a shared expert behind a gate."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from ...description.config_fields import Raw, flag, head_size, layers_alike, number, positive
from ...description.feed_forward import ExpertsSpec, FeedForwardSpec, LinearSpec, RoutingSpec
from ...description.spec import AttentionSpec, ModelSpec, NormSpec
from ..family import Family, gated_mlp, pre_norm_layer, split_heads, text_model
from .experts import count_of, gated_experts, refuse_unread


class Defaults(NamedTuple):
    """Where config.json does not say."""

    num_experts: int
    per_token: int
    size: int
    shared_size: int = 0


DEFAULTS: Final[Mapping[str, Defaults]] = {
    "Qwen2Moe": Defaults(60, 4, 1408, 5632),
    "Qwen3Moe": Defaults(128, 8, 768),
}


def _describe(raw: Raw, name: str) -> ModelSpec:
    norm = NormSpec("model.norm", positive(raw, "hidden_size"), number(raw, "rms_norm_eps", 1e-6))
    mixer = _mixer(raw, name, norm)
    dense, experts = gated_mlp(raw, norm.size), _experts(raw, norm.size, DEFAULTS[name])
    layers = [pre_norm_layer(mixer, _kind(raw, layer, dense, experts), norm) for layer in range(layers_alike(raw))]
    return text_model(raw, layers, norm)


def _kind(raw: Raw, layer: int, dense: FeedForwardSpec, experts: ExpertsSpec) -> FeedForwardSpec | ExpertsSpec:
    """A layer of `mlp_only_layers`, and all but every `decoder_sparse_step`th one, has no experts."""
    only = raw.get("mlp_only_layers") or []
    if not isinstance(only, list) or not all(type(one) is int for one in only):
        raise ValueError(f"mlp_only_layers must be a list of layers' numbers, got {only!r}")
    is_sparse = layer not in only and (layer + 1) % positive(raw, "decoder_sparse_step", 1) == 0
    return experts if is_sparse else dense


def _experts(raw: Raw, hidden_size: int, default: Defaults) -> ExpertsSpec:
    refuse_unread(raw, "norm_topk_prob", *(("shared_expert_intermediate_size",) if default.shared_size else ()))
    count = count_of(raw, ("num_experts", "num_local_experts"), default.num_experts)
    routing = RoutingSpec(
        router=LinearSpec("mlp.gate", hidden_size, count),
        experts_per_token=positive(raw, "num_experts_per_tok", default.per_token),
        scores="softmax",
        normalizes=flag(raw, "norm_topk_prob"),
    )
    experts = gated_experts(raw, hidden_size, positive(raw, "moe_intermediate_size", default.size), routing)
    return with_shared(raw, hidden_size, experts, default.shared_size) if default.shared_size else experts


def with_shared(raw: Raw, hidden_size: int, experts: ExpertsSpec, default: int) -> ExpertsSpec:
    """With a shared expert behind a gate. `default`: its size, where config.json does not say."""
    size = positive(raw, "shared_expert_intermediate_size", default)
    shared = replace(experts.expert, inputs=tuple(replace(it, outputs=size) for it in experts.expert.inputs))
    shared = replace(shared, output=replace(shared.output, inputs=size)).below("mlp.shared_expert")
    return replace(experts, shared=shared, shared_gate=LinearSpec("mlp.shared_expert_gate", hidden_size, 1))


def _mixer(raw: Raw, name: str, norm: NormSpec) -> AttentionSpec:
    if flag(raw, "use_sliding_window"):
        raise ValueError("use_sliding_window is not supported for this family: no checkpoint that is known sets it")
    if name == "Qwen2Moe":
        return split_heads(raw, norm.size, input_bias=flag(raw, "qkv_bias", True))
    has_bias, head_dim = flag(raw, "attention_bias"), head_size(raw)
    head_norm = NormSpec("", head_dim, norm.eps)
    return split_heads(
        raw, norm.size, head_dim=head_dim, input_bias=has_bias, output_bias=has_bias, head_norm=head_norm
    )


FAMILY: Final = Family(
    names=("Qwen2Moe", "Qwen3Moe"),
    describe=_describe,
    hub={"Qwen2Moe": ("Qwen/Qwen1.5-MoE-A2.7B-Chat",), "Qwen3Moe": ("Qwen/Qwen3-30B-A3B-Instruct-2507",)},
)
