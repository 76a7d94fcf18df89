"""Families with experts by the checks of every family: tokens and logits of transformers, in any steps."""

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    Gemma4TextConfig,
    Glm4MoeConfig,
    GptOssConfig,
    MixtralConfig,
    OlmoeConfig,
    PretrainedConfig,
    Qwen2MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3MoeConfig,
)

from .parity import TOKENS, check_certified, check_family, make_family

SHAPE: dict[str, Any] = TOKENS | {
    "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3,
    "num_key_value_heads": 1, "max_position_embeddings": 128, "head_dim": 16,
}  # fmt: skip
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ADAPTERS: dict[str, dict[str, Any]] = {
    "rank1": {"rank": 1, "kinds": ATTENTION},
    "rank12": {"rank": 12, "kinds": ("q_proj", "o_proj"), "use_rslora": True, "alpha": 5.0, "use_dora": True},
}
SHARED = ("shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj", "shared_expert_gate")
"""Of the shared expert."""
QWEN3 = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
GLM = {
    "n_routed_experts": 12, "num_experts_per_tok": 4, "moe_intermediate_size": 24, "n_group": 4, "topk_group": 2,
    "routed_scaling_factor": 1.7, "n_shared_experts": 2, "first_k_dense_replace": 1,
}  # fmt: skip
QWEN3_5 = QWEN3 | {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "shared_expert_intermediate_size": 28,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
}  # fmt: skip
QWEN2 = {"num_experts": 12, "num_experts_per_tok": 5, "moe_intermediate_size": 28}

GEMMA4 = {
    "enable_moe_block": True, "num_experts": 9, "top_k_experts": 3, "moe_intermediate_size": 28, "sliding_window": 9,
    "global_head_dim": 32, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "final_logit_softcapping": 11.0,
}  # fmt: skip
GEMMA4_INPUTS = GEMMA4 | {
    "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 330, "attention_k_eq_v": False,
    "num_experts": 16, "top_k_experts": 1,
}  # fmt: skip
DENSE = {
    "rank": 5, "kinds": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "router.proj"),
    "modules_to_save": ["pre_feedforward_layernorm", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_1",
                        "post_feedforward_layernorm_2"],
}  # fmt: skip
"""What Gemma 4 has beside its experts: the feed-forward of all tokens, the router, and norms of each."""


def without_head_dim(shape: dict[str, Any]) -> dict[str, Any]:
    return {name: size for name, size in shape.items() if name != "head_dim"}


def beside(config: PretrainedConfig) -> dict[str, dict[str, Any]]:
    """Adapters on what a family has beside its experts."""
    if isinstance(config, Gemma4TextConfig):
        return {"dense": DENSE}
    return {"shared": {"rank": 4, "kinds": SHARED}} if "shared_expert_intermediate_size" in config.to_dict() else {}


@pytest.mark.parametrize(
    "config",
    [
        Qwen3MoeConfig(**SHAPE, **QWEN3, norm_topk_prob=True),
        Qwen3MoeConfig(**without_head_dim(SHAPE), **QWEN3 | {"num_experts": 20}, mlp_only_layers=[1]),
        MixtralConfig(**SHAPE, num_local_experts=5, num_experts_per_tok=2),
        MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=1, sliding_window=9),
        GptOssConfig(**SHAPE, num_local_experts=6, num_experts_per_tok=3, sliding_window=9),
        Glm4MoeConfig(**SHAPE, **GLM, use_qk_norm=True),
        Glm4MoeConfig(**SHAPE, **GLM | {"n_group": 1, "topk_group": 1}, norm_topk_prob=False, attention_bias=True),
        OlmoeConfig(**SHAPE, num_experts=9, num_experts_per_tok=4),
        Qwen3_5MoeTextConfig(**SHAPE, **QWEN3_5),
        Qwen2MoeConfig(**SHAPE, **QWEN2, shared_expert_intermediate_size=36),
        Qwen2MoeConfig(**SHAPE, **QWEN2, shared_expert_intermediate_size=20, decoder_sparse_step=2, qkv_bias=False),
        Gemma4TextConfig(**SHAPE, **GEMMA4),
        Gemma4TextConfig(**SHAPE, **GEMMA4_INPUTS),
    ],
    ids=[
        "qwen3",
        "qwen3-dense-layers",
        "mixtral",
        "mixtral-window",
        "gpt-oss",
        "glm",
        "glm-one-group",
        "olmoe",
        "qwen3.5",
        "qwen2",
        "qwen2-every-second",
        "gemma4",
        "gemma4-inputs-of-layers",
    ],
)
def test_tokens_and_logits(tmp_path: Path, config: PretrainedConfig) -> None:
    others = beside(config)
    family = make_family(tmp_path, config, ADAPTERS | others)
    check_family(family)
    for name in ("rank12", *others):
        check_certified(family, name)
