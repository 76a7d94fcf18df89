"""Qwen3.5 and 3.6 with experts: their mixers as without, then experts and a shared one behind a gate."""

from typing import Final

from ...description.config_fields import Raw, positive
from ...description.feed_forward import LinearSpec, RoutingSpec
from ...description.spec import ModelSpec
from ..family import Family
from ..qwen3_5 import recurrent_model
from .experts import count_of, gated_experts
from .qwen_moe import with_shared

SIZE: Final = 512
"""Of an expert, and of the shared one, where config.json does not say."""


def _describe(raw: Raw, name: str) -> ModelSpec:
    size = positive(raw, "hidden_size")
    routing = RoutingSpec(
        router=LinearSpec("mlp.gate", size, count_of(raw, ("num_experts", "num_local_experts"), 256)),
        experts_per_token=positive(raw, "num_experts_per_tok", 8),
        scores="softmax",
        normalizes=True,
    )
    experts = gated_experts(raw, size, positive(raw, "moe_intermediate_size", SIZE), routing)
    return recurrent_model(raw, with_shared(raw, size, experts, SIZE))


FAMILY: Final = Family(
    names=("Qwen3_5Moe",),
    describe=_describe,
    text_of={"Qwen3_5MoeForConditionalGeneration": {"qwen3_5_moe_text": "Qwen3_5Moe"}},
    hub={"Qwen3_5Moe": ("Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.6-35B-A3B")},
)
