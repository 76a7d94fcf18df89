"""GLM-4, dense: partial rope on neighbours, a fused gate, and in glm4 norms of what blocks give."""

from pathlib import Path
from typing import Any

import pytest
from transformers import Glm4Config, GlmConfig

from loraplex.engine.model.config import parse_config

from .parity import ADAPTERS, TOKENS, check_family, check_refuses_names_only, make_family

SHAPE: dict[str, Any] = TOKENS | {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
PART = {"part": {"rank": 4, "kinds": ("q_proj", "gate_up_proj")}}
OLD = {"norms": {"rank": 4, "kinds": ("v_proj",), "modules_to_save": ["post_attention_layernorm", "model.norm"]}}
NEW = {
    "norms": {"rank": 4, "kinds": ("v_proj",), "modules_to_save": ["post_self_attn_layernorm", "post_mlp_layernorm"]}
}


def test_glm(tmp_path: Path) -> None:
    family = make_family(tmp_path, GlmConfig(**SHAPE | {"head_dim": 24}), dict(ADAPTERS) | PART | OLD)
    check_family(family)
    check_refuses_names_only(family, family.adapters["part"], "mlp.up_proj", tmp_path / "names")


def test_glm_4(tmp_path: Path) -> None:
    config = Glm4Config(**SHAPE, attention_bias=False, tie_word_embeddings=True)
    family = make_family(tmp_path, config, dict(ADAPTERS) | PART | NEW)
    check_family(family)


def test_what_a_config_leaves_out() -> None:
    left_out = ("head_dim", "num_key_value_heads")
    raw = {name: value for name, value in SHAPE.items() if name not in left_out}
    mixer = parse_config(raw | {"architectures": ["Glm4ForCausalLM"]}, {}).attention
    assert (mixer.head_dim, mixer.num_kv_heads) == (128, 2)
    assert mixer.rope is not None and mixer.rope.dims == 64 and mixer.rope.is_interleaved
    assert [linear.has_bias for linear in (*mixer.inputs, mixer.output)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported"),
        ({"partial_rotary_factor": 0.2}, "partial_rotary_factor 0.2 turns 3 of 16 dimensions"),
        ({"rope_scaling": {"rope_type": "ntk"}}, "rope scaling 'ntk' is not supported"),
    ],
)
def test_what_is_not_supported_is_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_config(SHAPE | {"architectures": ["Glm4ForCausalLM"]} | wrong, {})
