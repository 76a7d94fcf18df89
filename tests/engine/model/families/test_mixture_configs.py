"""config.json and files of families with experts: what is refused by name, and what is left out."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4TextConfig,
    Glm4MoeConfig,
    GptOssConfig,
    OlmoeConfig,
    PretrainedConfig,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
)

from loraplex import LLM
from loraplex.engine.model.config import ModelConfig, parse_config
from loraplex.engine.model.loader import Checkpoint

from .parity import check_whole, found, make_base
from .test_mixtures import GEMMA4, GLM, QWEN3_5, SHAPE


def refused(tmp_path: Path, config: PretrainedConfig, **changed: Any) -> str:
    """What a checkpoint of such a config.json is refused with."""
    architecture = f"{type(config).__name__.removesuffix('Config')}ForCausalLM"
    said = config.to_dict() | {"architectures": [architecture]} | changed
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(ValueError) as error:
        ModelConfig.from_folder(tmp_path)
    return str(error.value)


def test_what_is_not_computed_is_refused_by_name(tmp_path: Path) -> None:
    oss, olmoe = GptOssConfig(**SHAPE, num_local_experts=4), OlmoeConfig(**SHAPE)
    assert "swiglu_limit 6.0 is not supported; supported: 7.0" in refused(tmp_path, oss, swiglu_limit=6.0)
    assert "layer_types has chunked, which is not supported" in refused(tmp_path, oss, layer_types=["chunked"] * 3)
    assert "clip_qkv 8.0 is not supported" in refused(tmp_path, olmoe, clip_qkv=8.0)
    assert "each token has 9 of 7 experts" in refused(tmp_path, olmoe, num_experts=7, num_experts_per_tok=9)
    gemma4 = {"architectures": ["Gemma4ForCausalLM"]}
    assert "config.json must give num_experts as" in refused(
        tmp_path, Gemma4TextConfig(**SHAPE, **GEMMA4), **gemma4, num_experts=None
    )
    assert "each token has 10 of 9 experts" in refused(
        tmp_path, Gemma4TextConfig(**SHAPE, **GEMMA4), **gemma4, top_k_experts=10
    )
    unified = {"architectures": ["Gemma4UnifiedForCausalLM"], "model_type": "gemma4_unified_text"}
    assert "enable_moe_block is not supported for Gemma4Unified" in refused(
        tmp_path, Gemma4TextConfig(**SHAPE, **GEMMA4), **unified
    )
    glm = Glm4MoeConfig(**SHAPE, **GLM)
    assert "12 experts in 5 groups" in refused(tmp_path, glm, n_group=5)


@pytest.mark.parametrize(
    ("architecture", "missing"),
    [
        ("Glm4MoeLiteForCausalLM", "multi-head latent attention"),
        ("NemotronHForCausalLM", "Mamba-2 layers"),
        ("DeepseekV3ForCausalLM", "multi-head latent attention"),
    ],
)
def test_known_architectures_are_refused_with_what_is_missing(tmp_path: Path, architecture: str, missing: str) -> None:
    told = refused(tmp_path, OlmoeConfig(**SHAPE), architectures=[architecture])
    assert f"the architecture {architecture} is not supported yet" in told
    assert f"{missing}" in told and "not computed here; supported: " in told


def test_the_layer_that_guesses_a_second_token_is_left_out(tmp_path: Path) -> None:
    base = make_base(tmp_path, Glm4MoeConfig(**SHAPE, **GLM))
    file = base / "model.safetensors"
    save_file(load_file(file) | {"model.layers.3.eh_proj.weight": torch.zeros(48, 96)}, file, {"format": "pt"})
    with LLM(base, max_model_len=32, num_kv_blocks=16, num_threads=1) as llm:
        assert llm.generate([[5, 6, 7]], use_tqdm=False)[0].outputs[0].token_ids
    assert set(Checkpoint(base, ModelConfig.from_folder(base).spec).left_out) == {
        "the layer that guesses a second token"
    }


def test_the_text_part_of_a_whole_model(tmp_path: Path) -> None:
    vision = {
        "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 48,
        "num_position_embeddings": 16,
    }  # fmt: skip
    config = Qwen3_5MoeConfig(text_config=SHAPE | QWEN3_5, vision_config=vision)
    torch.manual_seed(0)
    check_whole(tmp_path, Qwen3_5MoeForConditionalGeneration(config), {"the vision encoder"})


def test_the_text_part_of_gemma_4_with_experts(tmp_path: Path) -> None:
    vision = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "head_dim": 8,
        "num_key_value_heads": 2, "patch_size": 4, "position_embedding_size": 16, "pooling_kernel_size": 1,
    }  # fmt: skip
    config = Gemma4Config(
        text_config=SHAPE | GEMMA4, vision_config=vision, image_token_id=310, video_token_id=311, audio_token_id=312
    )
    check_whole(tmp_path, Gemma4ForConditionalGeneration(config), {"the vision encoder"})


HUB: dict[str, Any] = {
    "architectures": ["Gemma4ForConditionalGeneration"], "dtype": "bfloat16",
    "text_config": {
        "attention_k_eq_v": True, "enable_moe_block": True, "global_head_dim": 512, "head_dim": 256,
        "hidden_size": 2816, "hidden_size_per_layer_input": 0, "intermediate_size": 2112, "moe_intermediate_size": 704,
        "num_attention_heads": 16, "num_experts": 128, "num_global_key_value_heads": 2, "num_hidden_layers": 30,
        "num_key_value_heads": 8, "top_k_experts": 8, "use_bidirectional_attention": "vision",
    },
}  # fmt: skip
"""As gemma-4-26B-A4B has it."""


def test_what_the_hub_says_of_gemma_4_with_experts() -> None:
    spec = parse_config(HUB, {}).spec
    expected = {
        "layers.0.feed_forward_norm": None,
        "layers.0.feed_forward.routing.num_experts": 128,
        "layers.0.feed_forward.routing.experts_per_token": 8,
        "layers.0.feed_forward.expert.size": 704,
        "layers.0.feed_forward.expert.activation": "gelu_tanh",
        "layers.0.feed_forward.shared.size": 2112,
        "layers.29.feed_forward.branch_norms.experts.path": "pre_feedforward_layernorm_2",
    }
    assert {path: found(spec, path) for path in expected} == expected
