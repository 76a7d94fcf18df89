"""SmolLM3: layers without rope, with windows where these are used."""

from pathlib import Path
from typing import Any

import pytest
from transformers import SmolLM3Config

from loraplex.engine.model.config import parse_config

from .parity import ADAPTERS, TOKENS, check_family, check_refuses_names_only, make_family

SHAPE: dict[str, Any] = TOKENS | {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}
OWN = {
    "part": {"rank": 4, "kinds": ("q_proj", "down_proj")},
    "norms": {"rank": 4, "kinds": ("v_proj",), "modules_to_save": ["post_attention_layernorm", "model.norm"]},
}


def test_smollm_3(tmp_path: Path) -> None:
    config = SmolLM3Config(**SHAPE, no_rope_layer_interval=2)
    family = make_family(tmp_path, config, dict(ADAPTERS) | OWN)
    check_family(family)
    check_refuses_names_only(family, family.adapters["part"], "mlp.gate_up_proj", tmp_path / "names")


def test_smollm_3_with_windows(tmp_path: Path) -> None:
    own = {"no_rope_layers": [1, 0, 0, 1], "use_sliding_window": True, "sliding_window": 9, "attention_bias": True}
    family = make_family(tmp_path, SmolLM3Config(**SHAPE | own | {"tie_word_embeddings": False}), OWN)
    check_family(family)


def test_every_fourth_layer_has_no_rope_by_default() -> None:
    raw = SHAPE | {"architectures": ["SmolLM3ForCausalLM"], "num_hidden_layers": 8}
    config = parse_config(raw, {})
    ropes = [mixer.rope for _, mixer in config.spec.attention_layers()]
    assert [rope is None for rope in ropes] == [False, False, False, True] * 2
    assert ropes[0] is not None and ropes[0].theta == 2_000_000
    assert config.spec.head.is_tied


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"no_rope_layers": [1, 0, 1]}, "no_rope_layers must be a list of 4 ones and zeros"),
        ({"no_rope_layers": [1, 0, 1, 2]}, "no_rope_layers must be a list of 4 ones and zeros"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types has chunked_attention, which is not supported"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "short_factor as a list of 8 numbers"),
    ],
)
def test_what_is_not_supported_is_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_config(SHAPE | {"architectures": ["SmolLM3ForCausalLM"]} | wrong, {})
