"""OLMoE: norms over all queries and all keys, and experts without a shared one."""

from dataclasses import replace
from typing import Final

from ...description.config_fields import Raw, flag, layers_alike, number, positive
from ...description.feed_forward import LinearSpec, RoutingSpec
from ...description.spec import ModelSpec, NormSpec
from ..family import Family, pre_norm_layer, split_heads, text_model
from .experts import count_of, gated_experts


def _describe(raw: Raw, name: str) -> ModelSpec:
    if raw.get("clip_qkv") is not None:
        raise ValueError(
            f"clip_qkv {raw['clip_qkv']!r} is not supported: queries, keys and values are not clipped here"
        )
    norm = NormSpec("model.norm", positive(raw, "hidden_size"), number(raw, "rms_norm_eps", 1e-5))
    has_bias = flag(raw, "attention_bias")
    mixer = split_heads(raw, norm.size, input_bias=has_bias, output_bias=has_bias)
    query, key = (heads * mixer.head_dim for heads in (mixer.num_heads, mixer.num_kv_heads))
    mixer = replace(
        mixer,
        query_norm=NormSpec("self_attn.q_norm", query, norm.eps),
        key_norm=NormSpec("self_attn.k_norm", key, norm.eps),
    )
    routing = RoutingSpec(
        router=LinearSpec("mlp.gate", norm.size, count_of(raw, ("num_experts", "num_local_experts"), 64)),
        experts_per_token=positive(raw, "num_experts_per_tok", 8),
        scores="softmax",
        normalizes=flag(raw, "norm_topk_prob"),
    )
    experts = gated_experts(raw, norm.size, positive(raw, "intermediate_size", 2048), routing)
    layers = [pre_norm_layer(mixer, experts, norm)] * layers_alike(raw)
    return text_model(raw, layers, norm)


FAMILY: Final = Family(names=("Olmoe",), describe=_describe, hub={"Olmoe": ("allenai/OLMoE-1B-7B-0924-Instruct",)})
