"""Mixtral: Mistral with experts. Its files call them block_sparse_moe, with w1, w3 and w2."""

from typing import Final

from ...description.config_fields import Raw, layers_alike, number, positive, window
from ...description.feed_forward import LinearSpec, RoutingSpec
from ...description.spec import ModelSpec, NormSpec
from ..family import Family, pre_norm_layer, split_heads, text_model
from .experts import count_of, gated_experts, refuse_unread

THETA: Final = 1_000_000.0
PATH: Final = "block_sparse_moe"
GATE_UP_DOWN: Final = ("w1", "w3", "w2")


def _describe(raw: Raw, name: str) -> ModelSpec:
    refuse_unread(raw)
    raw = {"rope_theta": THETA} | dict(raw)
    norm = NormSpec("model.norm", positive(raw, "hidden_size"), number(raw, "rms_norm_eps", 1e-5))
    routing = RoutingSpec(
        router=LinearSpec(f"{PATH}.gate", norm.size, count_of(raw, ("num_local_experts", "num_experts"), 8)),
        experts_per_token=positive(raw, "num_experts_per_tok", 2),
        scores="softmax",
        normalizes=True,
    )
    experts = gated_experts(raw, norm.size, positive(raw, "intermediate_size"), routing, PATH, GATE_UP_DOWN)
    mixer = split_heads(raw, norm.size, window=window(raw))
    layers = [pre_norm_layer(mixer, experts, norm)] * layers_alike(raw)
    return text_model(raw, layers, norm)


FAMILY: Final = Family(
    names=("Mixtral",), describe=_describe, hub={"Mixtral": ("mistralai/Mixtral-8x7B-Instruct-v0.1",)}
)
