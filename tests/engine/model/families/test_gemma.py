"""Gemma 2 and Gemma 3 against transformers and peft: caps, windows, norms that count from 1, scaled embeddings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from transformers import (
    Gemma2Config,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    PretrainedConfig,
)

from loraplex.engine.model.config import parse_config

from .parity import (
    TOKENS,
    Family,
    check_certified,
    check_family,
    check_refuses_names_only,
    check_whole,
    found,
    make_family,
)

SIZES: Final = TOKENS | {"max_position_embeddings": 256, "num_attention_heads": 4, "sliding_window": 9}
ROPES: Final = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
CONFIGS: Final[Mapping[str, PretrainedConfig]] = {
    "gemma2-padded-heads": Gemma2Config(
        **SIZES,
        hidden_size=60,
        intermediate_size=88,
        num_hidden_layers=3,
        num_key_value_heads=2,
        head_dim=20,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=7.0,
    ),
    "gemma2-whole-heads": Gemma2Config(
        **SIZES,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_key_value_heads=4,
        head_dim=32,
        query_pre_attn_scalar=64,
        final_logit_softcapping=None,
        attention_bias=True,
        tie_word_embeddings=False,
    ),
    "gemma3-linear-rope": Gemma3TextConfig(
        **SIZES,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_key_value_heads=2,
        head_dim=32,
        query_pre_attn_scalar=28,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=ROPES,
    ),
    "gemma3-padded-heads": Gemma3TextConfig(
        **SIZES,
        hidden_size=44,
        intermediate_size=56,
        num_hidden_layers=3,
        num_key_value_heads=1,
        head_dim=20,
        final_logit_softcapping=11.0,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}
NORMS: Final = ["input_layernorm", "post_attention_layernorm", "post_feedforward_layernorm", "model.norm"]


def adapters(config: PretrainedConfig) -> dict[str, dict[str, Any]]:
    norms = NORMS if config.model_type == "gemma2" else [*NORMS, "q_norm", "k_norm"]
    return {
        "rank1": {"rank": 1, "kinds": "all-linear", "use_rslora": True, "alpha": 3.0},
        "rank12": {"rank": 12, "kinds": ("q_proj", "v_proj")},
        "dora": {"rank": 8, "kinds": "all-linear", "use_dora": True},
        "embedding": {"rank": 4, "kinds": ("embed_tokens", "down_proj")},
        "norms": {"rank": 3, "kinds": ("o_proj", "up_proj"), "modules_to_save": norms},
    }


@pytest.fixture(scope="module", params=CONFIGS)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    config = CONFIGS[request.param]
    return make_family(tmp_path_factory.mktemp("gemma"), config, adapters(config))


def test_tokens_and_logits_are_those_of_transformers_and_peft(family: Family) -> None:
    check_family(family)


def test_an_adapter_of_a_module_that_is_not_there_is_refused(family: Family, tmp_path: Path) -> None:
    check_refuses_names_only(family, family.adapters["rank1"], "mlp.experts.gate_proj", tmp_path / "other")


def test_certificates_compute_the_same(family: Family) -> None:
    for name in ("dora", "embedding", "norms"):
        check_certified(family, name)


def test_the_folder_of_the_whole_model_serves_its_text_part(tmp_path: Path) -> None:
    """With a vision encoder beside, and an adapter trained on the whole model."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(
        text_config=CONFIGS["gemma3-linear-rope"].to_dict(),
        vision_config=vision | {"image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
        image_token_index=310,
    )
    check_whole(tmp_path, Gemma3ForConditionalGeneration(config), {"the vision encoder"})


HUB: Final[Mapping[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "gemma-2-2b": (
        {"architectures": ["Gemma2ForCausalLM"], "hidden_size": 2304, "num_hidden_layers": 26},
        {"embedding.vocab_size": 256_000, "head.soft_cap": 30.0, "layers.0.mixer.soft_cap": 50.0},
    ),
    "gemma-3-1b": (
        {
            "architectures": ["Gemma3ForCausalLM"],
            "hidden_size": 1152,
            "num_hidden_layers": 26,
            "num_key_value_heads": 1,
            "rope_theta": 1_000_000,
            "rope_local_base_freq": 10_000,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            "torch_dtype": "bfloat16",
        },
        {"embedding.scale": 34.0, "layers.4.mixer.window": 512, "layers.4.mixer.rope.theta": 10_000.0},
    ),
    "gemma-3-4b": (
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "torch_dtype": "bfloat16",
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10_240,
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
        },
        {
            "embedding.vocab_size": 262_208,
            "embedding.scale": 50.5,
            "layers.5.mixer.window": None,
            "layers.5.mixer.rope.kind": "linear",
            "layers.5.mixer.rope.theta": 1e6,
            "layers.6.mixer.window": 1024,
            "layers.6.mixer.rope.kind": "default",
        },
    ),
}
"""Fields that the hub's files have, and what follows from them and from what they leave out."""


@pytest.mark.parametrize("name", HUB)
def test_what_the_hubs_files_leave_out(name: str) -> None:
    raw, expected = HUB[name]
    spec = parse_config({"intermediate_size": 9216} | raw, {}).spec
    assert {path: found(spec, path) for path in expected} == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["sliding_attention", "mamba"]}, "layer_types has mamba, which is not supported"),
        ({"hidden_activation": "relu6"}, "hidden_activation 'relu6' is not supported"),
        (
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention is not supported as a model that generates",
        ),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is not supported for Gemma 3"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters must have an entry for full_attention"),
        ({"rope_parameters": {"full_attention": {"rope_type": "spiral"}}}, "rope scaling 'spiral' is not supported"),
        ({"sliding_window": None}, "sliding_window as a positive integer"),
        ({"query_pre_attn_scalar": 0}, "give query_pre_attn_scalar as a number above 0"),
        ({"head_dim": 31}, "turns 31 of 31 dimensions"),
    ],
)
def test_what_is_not_served_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    raw = CONFIGS["gemma3-linear-rope"].to_dict() | {"architectures": ["Gemma3ForCausalLM"]}
    parse_config(raw, {})
    with pytest.raises(ValueError, match=words):
        parse_config(raw | changes, {})
