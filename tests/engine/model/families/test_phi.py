"""Phi-3 and Phi-4: fused linears, sliding windows, longrope within its original length and beyond it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Phi3Config

from loraplex.engine.model.config import ModelConfig, parse_config
from loraplex.engine.model.rope import inverse_frequencies

from .parity import (
    ADAPTERS,
    TOKENS,
    Family,
    check_family,
    check_mixed_batch,
    check_refuses_names_only,
    check_shared_prefix,
    make_family,
)

SHAPE: dict[str, Any] = TOKENS | {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 160,
}
OWN = {
    "part": {"rank": 4, "kinds": ("qkv_proj", "down_proj")},
    "norms": {"rank": 4, "kinds": ("o_proj", "gate_up_proj"), "modules_to_save": ["input_layernorm", "model.norm"]},
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 1.6, 2.9, 4.2],
}
"""Half of heads of 16 is turned."""


def longrope(original: int) -> Phi3Config:
    own = {"partial_rotary_factor": 0.5, "original_max_position_embeddings": original, "tie_word_embeddings": True}
    return Phi3Config(**SHAPE | own, rope_scaling=dict(LONGROPE))


def test_phi_3(tmp_path: Path) -> None:
    family = make_family(tmp_path, Phi3Config(**SHAPE, sliding_window=9), dict(ADAPTERS) | OWN)
    check_family(family)
    check_refuses_names_only(family, family.adapters["part"], "self_attn.q_proj", tmp_path / "names")


def test_phi_4_mini_within_the_original_length(tmp_path: Path) -> None:
    family = make_family(tmp_path, longrope(80), dict(ADAPTERS) | OWN)
    check_family(family)


def test_phi_4_mini_beyond_the_original_length(tmp_path: Path) -> None:
    """The references' whole sequences are longer than the original length, so they have long factors too."""
    family = make_family(tmp_path, longrope(30), lengths=(31, 47, 33, 55, 31, 40))
    check_mixed_batch(family)
    check_shared_prefix(family)


def test_one_set_of_factors_serves_all_sequences(tmp_path: Path) -> None:
    """Keys in the cache stay as they are when a sequence grows beyond the original length, and so do the answers."""
    family = make_family(tmp_path, longrope(30), {}, lengths=(25, 12, 29, 30, 7, 18))
    with pytest.raises(AssertionError):
        check_mixed_batch(family)  # short sequences alone have short factors in the reference
    same = LONGROPE | {"short_factor": LONGROPE["long_factor"]}
    longer = make_family(tmp_path / "long", _with(longrope(30), same), {}, lengths=(25, 12, 29, 30, 7, 18))
    check_mixed_batch(Family(family.base, {}, longer.names, longer.prompts, {}, longer.tokens, longer.logits))


def _with(config: Phi3Config, rope: dict[str, Any]) -> Phi3Config:
    config.rope_parameters = dict(config.rope_parameters or {}) | rope
    return config


def test_the_length_that_is_served_chooses_the_factors() -> None:
    raw = longrope(30).to_dict() | {"architectures": ["Phi3ForCausalLM"]}
    config = parse_config(raw, {})
    assert config.length(None) == 30
    assert config.length(160) == 160
    rope = config.attention.rope
    assert rope is not None and rope.original_length == 30
    plain = 1.0 / 10_000 ** (torch.arange(0, 8, 2) / 8)
    for length, factors in ((30, LONGROPE["short_factor"]), (31, LONGROPE["long_factor"])):
        frequencies, factor = inverse_frequencies(rope, length)
        assert torch.allclose(frequencies, plain / torch.tensor(factors))
        assert factor == pytest.approx((1 + torch.tensor(160 / 30).log() / torch.tensor(30.0).log()).sqrt().item())


def test_names_of_longrope_before_it_had_one() -> None:
    raw = SHAPE | {"architectures": ["Phi3ForCausalLM"], "original_max_position_embeddings": 64}
    lists = {name: [1.0] * 8 for name in ("short_factor", "long_factor")}
    for name in ("su", "yarn", "longrope"):
        assert _rope_kind(raw | {"rope_scaling": {"type": name} | lists}) == "longrope"


def _rope_kind(raw: dict[str, Any]) -> str:
    rope = parse_config(raw, {}).attention.rope
    assert rope is not None
    return rope.kind


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "rope scaling 'llama3' is not supported for Phi"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8}}, "long_factor as a list of 8 numbers"),
        ({"rope_scaling": {"type": "su", "short_factor": [1.0] * 7}}, "short_factor as a list of 8 numbers"),
        ({"hidden_act": "xielu"}, "hidden_act 'xielu' is not supported"),
        ({"partial_rotary_factor": 0.06}, "partial_rotary_factor 0.06 turns 0 of 16 dimensions"),
    ],
)
def test_what_is_not_supported_is_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_config(SHAPE | {"architectures": ["Phi3ForCausalLM"]} | wrong, {})


def test_a_fused_linear_is_one_module(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(Phi3Config(**SHAPE, architectures=["Phi3ForCausalLM"]).to_json_string())
    layer = ModelConfig.from_folder(tmp_path).spec.layers[0]
    assert [linear.kind for linear in layer.linears()] == ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
    assert [linear.outputs for linear in layer.linears()] == [80, 48, 160, 48]
