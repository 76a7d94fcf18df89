"""Llama, Mistral and Qwen by the checks of every family; test_correctness.py has more of their shapes."""

from pathlib import Path

import pytest
from transformers import LlamaConfig, MinistralConfig, MistralConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from .parity import TOKENS, check_family, check_refuses_names_only, make_family

SHAPE = TOKENS | {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SHAPE),
        MistralConfig(**SHAPE, sliding_window=9),
        MinistralConfig(**SHAPE, sliding_window=9, layer_types=["sliding_attention", "full_attention"]),
        Qwen2Config(**SHAPE),
        Qwen3Config(**SHAPE),
    ],
    ids=lambda config: config.model_type,
)
def test_llama_and_its_like(tmp_path: Path, config: PretrainedConfig) -> None:
    family = make_family(tmp_path, config)
    check_family(family)
    check_refuses_names_only(family, family.adapters["rank1"], "linear_attn.in_proj_qkv", tmp_path / "names")
