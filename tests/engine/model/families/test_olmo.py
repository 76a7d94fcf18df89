"""OLMo 2 and 3: norms behind the blocks and over all queries and keys; windows, and yarn in layers without them."""

from pathlib import Path
from typing import Any

import pytest
from transformers import Olmo2Config, Olmo3Config

from loraplex.engine.model.config import ModelConfig, parse_config

from .parity import ADAPTERS, TOKENS, check_family, check_refuses_names_only, make_family

SHAPE: dict[str, Any] = TOKENS | {
    "hidden_size": 96,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
OWN = {
    "part": {"rank": 4, "kinds": ("q_proj", "down_proj")},
    "norms": {
        "rank": 4,
        "kinds": ("v_proj",),
        "modules_to_save": [
            "post_attention_layernorm",
            "post_feedforward_layernorm",
            "q_norm",
            "layers.1.self_attn.k_norm",
        ],
    },
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "attention_factor": 1.2}


def test_olmo_2(tmp_path: Path) -> None:
    family = make_family(tmp_path, Olmo2Config(**SHAPE, attention_bias=True), dict(ADAPTERS) | OWN)
    check_family(family)
    check_refuses_names_only(family, family.adapters["part"], "self_attn.qkv_proj", tmp_path / "names")


def test_olmo_3(tmp_path: Path) -> None:
    config = Olmo3Config(**SHAPE | {"num_hidden_layers": 4}, sliding_window=9, rope_scaling=dict(YARN))
    family = make_family(tmp_path, config, dict(ADAPTERS) | OWN)
    check_family(family)


@pytest.mark.parametrize(
    "said",
    [
        {"rope_scaling": YARN, "rope_theta": 10_000},
        {
            "rope_parameters": {
                "full_attention": YARN | {"rope_theta": 10_000},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000},
            }
        },
    ],
    ids=["as transformers 4 writes it", "as transformers 5 does"],
)
def test_only_layers_without_a_window_are_scaled(said: dict[str, Any]) -> None:
    config = _parsed(said)
    kinds = [(mixer.window, mixer.rope and (mixer.rope.kind, mixer.rope.theta)) for _, mixer in _layers(config)]
    assert kinds == [*[(4096, ("default", 10_000.0))] * 3, (None, ("yarn", 10_000.0))]


def test_theta_of_olmo_3_where_nothing_is_said() -> None:
    assert {mixer.rope and mixer.rope.theta for _, mixer in _layers(_parsed({}))} == {500_000.0}


def _parsed(said: dict[str, Any]) -> ModelConfig:
    return parse_config(SHAPE | {"architectures": ["Olmo3ForCausalLM"], "num_hidden_layers": 4} | said, {})


def _layers(config: ModelConfig) -> Any:
    return config.spec.attention_layers()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"layer_types": ["linear_attention"] * 4}, "layer_types has linear_attention, which is not supported"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types has 3 entries for 4 layers"),
        ({"rope_parameters": {"full_attention": {"rope_type": "axial"}}}, "rope scaling 'axial' is not supported"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope scaling 'yarn' lacks factor"),
        ({"hidden_act": "swiglu"}, "hidden_act 'swiglu' is not supported"),
    ],
)
def test_what_is_not_supported_is_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _parsed(wrong)
