"""Gemma 4 without experts, against transformers and peft: inputs of layers, shared keys and values, two head sizes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma4Config, Gemma4ForConditionalGeneration, Gemma4TextConfig, PretrainedConfig
from transformers.models.gemma4_unified import Gemma4UnifiedTextConfig

from loraplex.engine.model.config import ModelConfig, base_signature, parse_config
from loraplex.engine.model.loader import Checkpoint
from loraplex.lora.inspection.inspection import inspect_adapter
from tests.checkpoints import make_adapter

from .parity import (
    TOKENS,
    Family,
    check_certified,
    check_family,
    check_refuses_names_only,
    check_whole,
    found,
    make_base,
    make_family,
)

SIZES: Final = TOKENS | {
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 9,
    "vocab_size_per_layer_input": 330,
}
CONFIGS: Final[Mapping[str, PretrainedConfig]] = {
    "like-E2B": Gemma4TextConfig(
        **SIZES,
        hidden_size=60,
        intermediate_size=88,
        num_hidden_layers=6,
        head_dim=16,
        global_head_dim=40,
        hidden_size_per_layer_input=10,
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
        layer_types=["sliding_attention", "full_attention"] * 3,
        final_logit_softcapping=9.0,
    ),
    "like-31B": Gemma4TextConfig(
        **SIZES,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_global_key_value_heads=1,
        head_dim=32,
        global_head_dim=64,
        hidden_size_per_layer_input=0,
        attention_k_eq_v=True,
        layer_types=["sliding_attention", "full_attention", "full_attention"],
        use_bidirectional_attention="vision",
    ),
    "like-12B": Gemma4UnifiedTextConfig(
        **{name: size for name, size in SIZES.items() if name != "vocab_size_per_layer_input"},
        hidden_size=44,
        intermediate_size=56,
        num_hidden_layers=4,
        num_global_key_value_heads=2,
        head_dim=16,
        global_head_dim=24,
        num_kv_shared_layers=1,
        attention_k_eq_v=True,
        layer_types=["sliding_attention", "full_attention"] * 2,
        final_logit_softcapping=12.0,
    ),
}


def adapters(config: PretrainedConfig) -> dict[str, dict[str, Any]]:
    own = (
        ["per_layer_input_gate", "per_layer_projection"]
        if getattr(config, "hidden_size_per_layer_input", 0)
        else ["k_proj"]
    )
    norm = ["post_per_layer_input_norm"] if getattr(config, "hidden_size_per_layer_input", 0) else []
    return {
        "rank1": {"rank": 1, "kinds": "all-linear", "use_rslora": True, "alpha": 3.0},
        "rank12": {"rank": 12, "kinds": ("q_proj", "v_proj")},
        "dora": {"rank": 8, "kinds": "all-linear", "use_dora": True},
        "embedding": {"rank": 4, "kinds": ("embed_tokens", *own)},
        "norms": {
            "rank": 3,
            "kinds": ("o_proj", "up_proj"),
            "modules_to_save": ["input_layernorm", "q_norm", "k_norm", "model.norm", *norm],
        },
    }


@pytest.fixture(scope="module", params=CONFIGS)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    config = CONFIGS[request.param]
    return make_family(tmp_path_factory.mktemp("gemma4"), config, adapters(config))


def test_tokens_and_logits_are_those_of_transformers_and_peft(family: Family) -> None:
    check_family(family)


def test_an_adapter_of_a_module_that_is_not_there_is_refused(family: Family, tmp_path: Path) -> None:
    check_refuses_names_only(family, family.adapters["rank1"], "experts.gate_up_proj", tmp_path / "other")


def test_certificates_compute_the_same(family: Family) -> None:
    for name in ("dora", "embedding", "norms"):
        check_certified(family, name)


def test_the_folder_of_the_whole_model_serves_its_text_part(tmp_path: Path) -> None:
    """With encoders beside, and the keys that layers with shared ones do not use, as some checkpoints have them."""
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = small | {"intermediate_size": 16, "head_dim": 8, "num_key_value_heads": 2, "patch_size": 4}
    config = Gemma4Config(
        text_config=CONFIGS["like-E2B"].to_dict(),
        vision_config=vision | {"position_embedding_size": 16, "pooling_kernel_size": 1},
        audio_config=small | {"output_proj_dims": 16, "subsampling_conv_channels": [4, 4]},
        **{f"{kind}_token_id": 310 + place for place, kind in enumerate(("image", "video", "audio"))},
    )
    parts = {"the vision encoder", "the audio encoder"}
    check_whole(tmp_path, Gemma4ForConditionalGeneration(config), parts)
    tensors = load_file(tmp_path / "base" / "model.safetensors")
    tensors["model.language_model.layers.5.self_attn.k_proj.weight"] = torch.zeros(80, 60)
    save_file(tensors, tmp_path / "base" / "model.safetensors", {"format": "pt"})
    config = ModelConfig.from_folder(tmp_path / "base")
    checkpoint = Checkpoint(tmp_path / "base", config.spec)
    checkpoint.verify(config)
    assert set(checkpoint.left_out) == {*parts, "keys and values of layers that read those of others"}


def test_tokens_that_an_adapter_adds_have_no_inputs_of_their_own(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", CONFIGS["like-E2B"])
    folder = make_adapter(tmp_path / "adapter", base, vocab_size=328, modules_to_save=["embed_tokens", "lm_head"])
    config = (folder / "adapter_config.json").read_bytes()
    inspection = inspect_adapter(config, folder / "adapter_model.safetensors", base_signature(base))
    assert inspection.manifest is None
    assert any("8 tokens are added" in failure.message for failure in inspection.failures())


HUB: Final[dict[str, Any]] = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "dtype": "bfloat16",
    "text_config": {
        "attention_k_eq_v": True,
        "global_head_dim": 512,
        "head_dim": 256,
        "hidden_size": 5376,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": 21_504,
        "num_attention_heads": 32,
        "num_global_key_value_heads": 4,
        "num_hidden_layers": 60,
        "num_key_value_heads": 16,
        "num_kv_shared_layers": 0,
        "sliding_window": 1024,
        "use_bidirectional_attention": "vision",
    },
}
"""As checkpoints have it that an earlier transformers wrote."""


def test_fields_of_earlier_checkpoints() -> None:
    spec = parse_config(HUB, {}).spec
    expected = {
        "layers.4.mixer.head_dim": 256,
        "layers.4.mixer.num_kv_heads": 16,
        "layers.4.mixer.values_are_keys": False,
        "layers.4.mixer.window": 1024,
        "layers.5.mixer.head_dim": 512,
        "layers.5.mixer.num_kv_heads": 4,
        "layers.5.mixer.values_are_keys": True,
        "layers.5.mixer.rope.kind": "proportional",
        "layers.5.mixer.rope.dims": 512,
        "embedding.scale": 73.5,
        "token_inputs": None,
    }
    assert {path: found(spec, path) for path in expected} == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"enable_moe_block": True}, "must give moe_intermediate_size as"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all' is not supported"),
        ({"layer_types": ["mamba"] * 6}, "layer_types has mamba, which is not supported"),
        ({"hidden_activation": "relu6"}, "hidden_activation 'relu6' is not supported"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers is 6; it must be less than num_hidden_layers, 6"),
        ({"num_kv_shared_layers": 5}, "leaves no full_attention layer with keys and values of its own"),
        ({"vocab_size_per_layer_input": 300}, "vocab_size_per_layer_input 300 is less than vocab_size 320"),
        ({"per_layer_config": {"1": {"intermediate_size": 8}}}, "per_layer_config may give head_dim"),
        ({"per_layer_config": {"5": {"head_dim": 40}}}, "layers 3 and 5 share keys and values"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters must have an entry for sliding_attention"),
    ],
)
def test_what_is_not_served_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    raw = CONFIGS["like-E2B"].to_dict() | {"architectures": ["Gemma4ForCausalLM"]}
    parse_config(raw, {})
    with pytest.raises(ValueError, match=words):
        parse_config(raw | changes, {})
