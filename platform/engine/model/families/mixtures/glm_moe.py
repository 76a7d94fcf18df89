"""GLM-4.5, 4.6 and 4.7 with experts: sigmoid scores with a correction, and a shared expert without a gate."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ...description.config_fields import Raw, flag, head_size, layers_alike, number, positive, rope
from ...description.feed_forward import ExpertsSpec, FeedForwardSpec, LinearSpec, RoutingSpec
from ...description.spec import AttentionSpec, ModelSpec, NormSpec
from ..family import Family, gated_mlp, pre_norm_layer, split_heads, text_model
from .experts import count_of, gated_experts

DEFAULTS: Final[Mapping[str, Any]] = {"partial_rotary_factor": 0.5, "moe_intermediate_size": 1408}
"""Where config.json does not say."""
NEXT: Final = "the layer that guesses a second token"


def _describe(raw: Raw, name: str) -> ModelSpec:
    raw = dict(DEFAULTS) | dict(raw)
    norm = NormSpec("model.norm", positive(raw, "hidden_size"), number(raw, "rms_norm_eps", 1e-5))
    mixer, dense, experts = _mixer(raw, norm), gated_mlp(raw, norm.size), _experts(raw, norm.size)
    num_layers, first = layers_alike(raw), int(number(raw, "first_k_dense_replace", 1))
    kinds: list[FeedForwardSpec | ExpertsSpec] = [dense if layer < first else experts for layer in range(num_layers)]
    layers = [pre_norm_layer(mixer, kind, norm) for kind in kinds]
    return text_model(raw, layers, norm, left_out={f"model.layers.{num_layers}.": NEXT})


def _mixer(raw: Raw, norm: NormSpec) -> AttentionSpec:
    return split_heads(
        raw,
        norm.size,
        input_bias=flag(raw, "attention_bias"),
        rotary=rope(raw, head_size(raw), may_be_partial=True),
        head_norm=NormSpec("", head_size(raw), norm.eps) if flag(raw, "use_qk_norm") else None,
    )


def _experts(raw: Raw, hidden_size: int) -> ExpertsSpec:
    routing = RoutingSpec(
        router=LinearSpec("mlp.gate", hidden_size, count_of(raw, ("n_routed_experts", "num_local_experts"), 128)),
        experts_per_token=positive(raw, "num_experts_per_tok", 8),
        scores="sigmoid",
        normalizes=flag(raw, "norm_topk_prob", True),
        scale=number(raw, "routed_scaling_factor", 1.0),
        num_groups=positive(raw, "n_group", 1),
        groups_per_token=positive(raw, "topk_group", 1),
        correction="mlp.gate.e_score_correction_bias",
    )
    size = positive(raw, "moe_intermediate_size")
    experts = gated_experts(raw, hidden_size, size, routing)
    shared = gated_mlp(dict(raw) | {"intermediate_size": size * positive(raw, "n_shared_experts", 1)}, hidden_size)
    return replace(experts, shared=_below_shared(shared))


def _below_shared(shared: FeedForwardSpec) -> FeedForwardSpec:
    named = [replace(it, path=it.path.replace("mlp.", "mlp.shared_experts.")) for it in (*shared.inputs, shared.output)]
    return replace(shared, inputs=tuple(named[:-1]), output=named[-1])


FAMILY: Final = Family(
    names=("Glm4Moe",), describe=_describe, hub={"Glm4Moe": ("zai-org/GLM-4.5-Air", "zai-org/GLM-4.6")}
)
