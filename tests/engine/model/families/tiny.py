"""A tiny configuration of every family that generates text, odd where the family allows it. Sizes are multiples of 32,
so that every way of storing weights fits."""

from collections.abc import Mapping
from typing import Any, Final

from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    Glm4Config,
    Glm4MoeConfig,
    GlmConfig,
    GPT2Config,
    GraniteConfig,
    GraniteMoeHybridConfig,
    LlamaConfig,
    Ministral3Config,
    MinistralConfig,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    OPTConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)
from transformers.models.gemma4_unified import Gemma4UnifiedTextConfig

from .parity import TOKENS

SIZES: Final[dict[str, Any]] = TOKENS | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
OPT: Final[dict[str, Any]] = {name: size for name, size in SIZES.items() if "intermediate" not in name} | {
    "ffn_dim": 96,
    "word_embed_proj_dim": 64,
}
GPT2: Final[dict[str, Any]] = TOKENS | {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
WINDOW: Final = 9
ALTERNATING: Final = ["sliding_attention", "full_attention"]
YARN: Final = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10_000.0}
GROWING: Final = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4}
LONGROPE: Final = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 1.6, 2.9, 4.2],
}
GRANITE: Final = {
    "embedding_multiplier": 0.6,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.9,
    "logits_scaling": 2.5,
}
GEMMA_4: Final = SIZES | {"global_head_dim": 32, "sliding_window": WINDOW, "final_logit_softcapping": 9.0}
EXPERTS: Final = {"num_local_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
TINY: Final[Mapping[str, PretrainedConfig]] = {
    "llama": LlamaConfig(**SIZES, attention_bias=True),
    "mistral": MistralConfig(**SIZES, sliding_window=WINDOW),
    "ministral": MinistralConfig(**SIZES, sliding_window=WINDOW, layer_types=ALTERNATING),
    "ministral3": Ministral3Config(**SIZES, sliding_window=WINDOW, rope_parameters=dict(GROWING)),
    "qwen2": Qwen2Config(**{name: size for name, size in SIZES.items() if name != "head_dim"}),
    "qwen3": Qwen3Config(**SIZES | {"head_dim": 32}),
    "opt": OPTConfig(**OPT),
    "opt-projected": OPTConfig(**OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "gpt2": GPT2Config(**GPT2),
    "gemma2": Gemma2Config(
        **SIZES,
        sliding_window=WINDOW,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=7.0,
    ),
    "gemma3": Gemma3TextConfig(**SIZES, sliding_window=WINDOW, query_pre_attn_scalar=28, layer_types=ALTERNATING),
    "gemma4": Gemma4TextConfig(
        **GEMMA_4 | {"num_hidden_layers": 6},
        hidden_size_per_layer_input=32,
        vocab_size_per_layer_input=330,
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
        layer_types=ALTERNATING * 3,
    ),
    "gemma4-values-are-keys": Gemma4TextConfig(
        **GEMMA_4,
        hidden_size_per_layer_input=0,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        layer_types=ALTERNATING,
    ),
    "gemma4-unified": Gemma4UnifiedTextConfig(
        **GEMMA_4 | {"num_hidden_layers": 4},
        num_global_key_value_heads=2,
        num_kv_shared_layers=1,
        attention_k_eq_v=True,
        layer_types=ALTERNATING * 2,
    ),
    "gemma4-experts": Gemma4TextConfig(
        **GEMMA_4,
        hidden_size_per_layer_input=0,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        layer_types=ALTERNATING,
        enable_moe_block=True,
        num_experts=7,
        top_k_experts=2,
        moe_intermediate_size=64,
    ),
    "qwen3_5": Qwen3_5TextConfig(
        **SIZES | {"num_hidden_layers": 4, "head_dim": 64},
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=48,
    ),
    "phi3": Phi3Config(**{name: size for name, size in SIZES.items() if name != "head_dim"}, sliding_window=WINDOW),
    "phi3-longrope": Phi3Config(
        **{name: size for name, size in SIZES.items() if name != "head_dim"},
        rope_scaling=dict(LONGROPE),
        partial_rotary_factor=0.5,
        original_max_position_embeddings=60,
        tie_word_embeddings=True,
    ),
    "granite": GraniteConfig(**SIZES, **GRANITE, attention_bias=True, mlp_bias=True),
    "granite-hybrid": GraniteMoeHybridConfig(
        **SIZES,
        **GRANITE,
        num_local_experts=0,
        shared_intermediate_size=96,
        layer_types=["attention"] * 2,
        mamba_n_heads=4,
        position_embedding_type="nope",
    ),
    "smollm3": SmolLM3Config(
        **SIZES | {"num_hidden_layers": 4},
        no_rope_layers=[1, 0, 0, 1],
        use_sliding_window=True,
        sliding_window=WINDOW,
    ),
    "olmo2": Olmo2Config(**SIZES),
    "olmo3": Olmo3Config(**SIZES, sliding_window=WINDOW, layer_types=ALTERNATING, rope_scaling=dict(YARN)),
    "qwen2-moe": Qwen2MoeConfig(**SIZES, **EXPERTS, shared_expert_intermediate_size=96),
    "qwen3-moe": Qwen3MoeConfig(**SIZES | {"head_dim": 32}, **EXPERTS, norm_topk_prob=True, mlp_only_layers=[0]),
    "glm4-moe": Glm4MoeConfig(**SIZES, **EXPERTS, n_group=2, topk_group=1, use_qk_norm=True),
    "glm": GlmConfig(**SIZES),
    "glm4": Glm4Config(**SIZES, attention_bias=False, tie_word_embeddings=True),
}
ADAPTERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "lora": {"rank": 3, "kinds": "all-linear"},
    "dora": {"rank": 8, "kinds": "all-linear", "use_dora": True},
}
"""On every linear of the layers, but for those of LINEARS."""
LINEARS: Final[Mapping[str, tuple[str, ...]]] = {
    "qwen2-moe": ("q_proj", "v_proj", "shared_expert.up_proj", "shared_expert.down_proj", "shared_expert_gate"),
    "qwen3-moe": ("q_proj", "o_proj"),
    "glm4-moe": ("k_proj", "o_proj"),
    "gemma4-experts": ("q_proj", "o_proj", "mlp.gate_proj", "mlp.down_proj", "router.proj"),
}
"""What adapters are on, where a family has experts."""
