"""Granite 3 and dense Granite 4: multipliers of embedding, attention, residuals and logits; no positions at all."""

from pathlib import Path
from typing import Any

import pytest
from transformers import GraniteConfig, GraniteMoeHybridConfig

from loraplex.engine.model.config import parse_config

from .parity import ADAPTERS, TOKENS, check_family, check_refuses_names_only, make_family

SHAPE: dict[str, Any] = TOKENS | {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "embedding_multiplier": 0.6,
    "attention_multiplier": 0.11,
    "residual_multiplier": 0.9,
    "logits_scaling": 2.5,
}
DENSE: dict[str, Any] = {
    "num_local_experts": 0,
    "shared_intermediate_size": 72,
    "layer_types": ["attention"] * 2,
    "mamba_n_heads": 4,
}
THIRD = {
    "part": {"rank": 4, "kinds": ("q_proj", "down_proj", "embed_tokens", "lm_head")},
    "norms": {"rank": 4, "kinds": ("v_proj",), "modules_to_save": ["post_attention_layernorm", "model.norm"]},
}
FOURTH = {
    "part": {"rank": 4, "kinds": ("input_linear", "k_proj")},
    "norms": {"rank": 4, "kinds": ("output_linear",), "modules_to_save": ["input_layernorm", "model.norm"]},
}


def test_granite_3(tmp_path: Path) -> None:
    config = GraniteConfig(**SHAPE, attention_bias=True, mlp_bias=True)
    family = make_family(tmp_path, config, dict(ADAPTERS) | THIRD)
    check_family(family)
    check_refuses_names_only(family, family.adapters["part"], "shared_mlp.input_linear", tmp_path / "names")


def test_granite_4(tmp_path: Path) -> None:
    config = GraniteMoeHybridConfig(**SHAPE | DENSE, position_embedding_type="rope", tie_word_embeddings=True)
    family = make_family(tmp_path, config, dict(ADAPTERS) | FOURTH)
    check_family(family)
    check_refuses_names_only(family, family.adapters["part"], "mlp.gate_proj", tmp_path / "names")


def test_granite_4_without_positions(tmp_path: Path) -> None:
    config = GraniteMoeHybridConfig(**SHAPE | DENSE, position_embedding_type="nope")
    family = make_family(tmp_path, config, FOURTH)
    check_family(family)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"num_local_experts": 32}, "num_local_experts is 32: experts are not supported"),
        ({"num_local_experts": None}, "num_local_experts is 8: experts are not supported"),
        ({"layer_types": ["mamba", "attention"]}, "layer_types has mamba, which is not supported"),
        ({"layer_types": None}, "layer_types has mamba, which is not supported"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type 'alibi' is not supported"),
        ({"hidden_act": "xielu"}, "hidden_act 'xielu' is not supported"),
        ({"logits_scaling": 0}, "give logits_scaling as a number above 0"),
        ({"embedding_multiplier": "3"}, "embedding_multiplier as a number"),
    ],
)
def test_what_is_not_supported_is_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_config(SHAPE | DENSE | {"architectures": ["GraniteMoeHybridForCausalLM"]} | wrong, {})
