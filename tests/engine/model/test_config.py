import json
from pathlib import Path
from typing import Any

import pytest

from loraplex.engine.model.config import ModelConfig, base_signature, parse_config
from tests.checkpoints import make_checkpoint

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


def changed(**fields: Any) -> dict[str, Any]:
    return LLAMA | fields


def test_defaults_are_those_of_transformers() -> None:
    config = parse_config(LLAMA, {})
    mixer = config.attention
    assert (mixer.num_kv_heads, mixer.head_dim, config.dtype) == (4, 16, "float32")
    assert config.spec.norm is not None and config.spec.norm.eps == 1e-6
    assert not any(linear.has_bias for layer in config.spec.layers for linear in layer.linears())
    assert mixer.query_norm is None and windows(config) == (None, None, None)
    assert mixer.rope is not None and (mixer.rope.kind, mixer.rope.theta) == ("default", 10_000.0)


def windows(config: ModelConfig) -> tuple[int | None, ...]:
    return tuple(mixer.window for _, mixer in config.spec.attention_layers())


def test_rope_is_read_in_the_spelling_of_transformers_4_and_5() -> None:
    numbers = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    old = changed(rope_theta=5e5, rope_scaling={"type": "llama3", **numbers})
    new = changed(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **numbers})
    rope = parse_config(new, {}).attention.rope
    assert rope is not None and parse_config(old, {}).attention.rope == rope
    assert rope.parameters["factor"] == 8.0


def test_generation_config_says_which_tokens_end_a_sequence() -> None:
    assert parse_config(changed(eos_token_id=2), {}).eos_token_ids == (2,)
    assert parse_config(changed(eos_token_id=2), {"eos_token_id": [3, 4]}).eos_token_ids == (3, 4)
    assert parse_config(LLAMA, {}).eos_token_ids == ()


@pytest.mark.parametrize(
    ("architecture", "fields", "expected"),
    [
        ("LlamaForCausalLM", {"sliding_window": 8}, (None, None, None)),
        ("MistralForCausalLM", {"sliding_window": 8}, (8, 8, 8)),
        ("MistralForCausalLM", {"sliding_window": None}, (None, None, None)),
        (
            "MistralForCausalLM",
            {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            (None, 8, None),
        ),
        ("MinistralForCausalLM", {"sliding_window": 8}, (8, 8, 8)),
        ("Qwen2ForCausalLM", {"sliding_window": 8}, (None, None, None)),
        ("Qwen2ForCausalLM", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, (None, 8, 8)),
        (
            "Qwen3ForCausalLM",
            {
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (8, None, 8),
        ),
    ],
)
def test_sliding_windows_by_family(architecture: str, fields: dict[str, Any], expected: tuple[int | None, ...]) -> None:
    assert windows(parse_config(changed(architectures=[architecture], **fields), {})) == expected


@pytest.mark.parametrize(
    ("types", "words"),
    [
        (["full_attention", "chunked_attention", "full_attention"], "layer_types has chunked_attention"),
        (["full_attention", "sliding_attention"], "layer_types has 2 entries for 3 layers"),
    ],
)
def test_attention_of_an_unknown_kind_is_refused_by_name(types: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_config(changed(architectures=["MistralForCausalLM"], layer_types=types), {})


def test_an_unsupported_architecture_is_refused_by_name_with_what_is_supported() -> None:
    with pytest.raises(ValueError, match=r"MambaForCausalLM is not supported.*LlamaForCausalLM.*Qwen3ForCausalLM"):
        parse_config(changed(architectures=["MambaForCausalLM"]), {})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"quantization_config": {"quant_method": "hqq"}}, r"not accepted: quant_method 'hqq'\. Accepted: awq"),
        ({"hidden_act": "mish"}, "hidden_act 'mish'"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "rope scaling 'longrope'"),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "lacks low_freq_factor, high_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_size": "64"}, "hidden_size as a positive integer"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"dtype": "float8_e4m3fn"}, "float8_e4m3fn is not supported"),
    ],
)
def test_what_would_change_the_output_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_config(changed(**fields), {})


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="not valid JSON"):
        ModelConfig.from_folder(tmp_path)


def test_the_signature_names_the_linears_and_tells_checkpoints_apart(tmp_path: Path) -> None:
    first = base_signature(make_checkpoint(tmp_path / "a", "qwen3", head_dim=24))
    same = base_signature(make_checkpoint(tmp_path / "b", "qwen3", head_dim=24))
    other = base_signature(make_checkpoint(tmp_path / "c", "qwen3", head_dim=24, seed=5))
    assert first == same
    assert first.fingerprint != other.fingerprint
    assert first.num_layers == 2
    assert first.linears["q_proj"] == (64, 96) and first.linears["down_proj"] == (96, 64)


def test_the_fingerprint_follows_the_architecture(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path)
    before = base_signature(folder).fingerprint
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(raw | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"})
    )
    assert base_signature(folder).fingerprint != before
