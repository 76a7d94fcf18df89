"""Folders that look like a family's and are not: refused before memory is taken, with what is wrong and what to do."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file

from loraplex import LLM
from loraplex.engine.model.config import ModelConfig, parse_config
from loraplex.engine.model.families.find import architectures
from loraplex.engine.model.loader import Checkpoint

from .parity import make_base
from .tiny import TINY

WHOLE: Final = {
    "Mistral3ForConditionalGeneration": "ministral3",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Gemma4ForConditionalGeneration": "gemma4",
    "Gemma4UnifiedForConditionalGeneration": "gemma4-unified",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
}
"""Larger models -> the tiny text model that may be a part of them."""
NO_KINDS: Final = ("opt", "opt-projected", "gpt2", "phi3")
"""No config.json of these has layer_types, or they are other ones."""
SURPLUS: Final = "model.layers.0.mlp.experts.77.up_proj.weight"
REMEDY: Final = "download it again; if it is whole, its config.json is another model's"


def whole_config(architecture: str, **changes: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "text_config": TINY[WHOLE[architecture]].to_dict() | changes}


def config_of(family: str) -> dict[str, Any]:
    config = TINY[family].to_dict()
    return config | {
        "architectures": [f"{type(TINY[family]).__name__.removesuffix('Config').removesuffix('Text')}ForCausalLM"]
    }


def add_tensor(base: Path, name: str) -> None:
    tensors = load_file(base / "model.safetensors")
    save_file(tensors | {name: torch.zeros(4, 4)}, base / "model.safetensors", {"format": "pt"})


def test_every_larger_model_without_experts_is_tried() -> None:
    larger = {name for name, found in architectures().items() if found.parts}
    assert set(WHOLE) == {name for name in larger if "Moe" not in name}


@pytest.mark.parametrize("architecture", WHOLE)
@pytest.mark.parametrize("kind", ["mamba2", "llama", "gemma3n_text", "qwen3_5_moe_text", 7])
def test_a_larger_model_around_another_text_model_is_refused(architecture: str, kind: str) -> None:
    parse_config(whole_config(architecture), {})
    words = f"text_config has model_type {kind!r}, .* the text part of {architecture}; supported: [a-z]"
    with pytest.raises(ValueError, match=words):
        parse_config(whole_config(architecture, model_type=kind), {})


def test_the_text_model_of_a_larger_one_is_found_by_its_model_type() -> None:
    raw = whole_config("Mistral3ForConditionalGeneration")
    assert parse_config(raw, {}).architecture == "Ministral3ForCausalLM"
    del raw["text_config"]["model_type"]
    assert parse_config(raw, {}).architecture == "MistralForCausalLM"


@pytest.mark.parametrize(
    ("types", "words"),
    [
        (["full_attention", "conv"], "layer_types has conv, which is not supported; supported: [a-z]"),
        (["full_attention"] * 9, r"layer_types has 9 entries for \d layers; it must have one for each"),
        (["full_attention"], r"layer_types has 1 entries for \d layers; it must have one for each"),
        ([], r"layer_types has 0 entries for \d layers; it must have one for each"),
        ("full_attention", "layer_types must be a list of words, one for each layer; supported: [a-z]"),
        (2, "layer_types must be a list of words"),
        ([["full_attention"], 1], "layer_types must be a list of words"),
    ],
)
@pytest.mark.parametrize("family", [*WHOLE, *(name for name in TINY if name not in NO_KINDS)])
def test_wrong_kinds_of_layers_are_refused(family: str, types: object, words: str) -> None:
    raw = whole_config(family, layer_types=types) if family in WHOLE else config_of(family) | {"layer_types": types}
    with pytest.raises(ValueError, match=words):
        parse_config(raw, {})


@pytest.mark.parametrize("family", ["llama", "granite", "glm", "glm4", "olmo2", "phi3-longrope"])
def test_windows_that_a_family_does_not_have_are_refused(family: str) -> None:
    parse_config(config_of(family) | {"layer_types": ["full_attention"] * 2}, {})
    with pytest.raises(ValueError, match="layer_types has sliding_attention, which is not supported"):
        parse_config(config_of(family) | {"layer_types": ["full_attention", "sliding_attention"]}, {})


@pytest.mark.parametrize("family", TINY)
def test_surplus_tensors_are_refused_by_name(tmp_path: Path, family: str) -> None:
    base = make_base(tmp_path / "base", TINY[family])
    config = ModelConfig.from_folder(base)
    Checkpoint(base, config.spec).verify(config)
    add_tensor(base, SURPLUS)
    with pytest.raises(ValueError, match=f"unexpected: .*experts.77.up_proj.weight; {REMEDY}"):
        Checkpoint(base, config.spec).verify(config)


@pytest.mark.parametrize("architecture", WHOLE)
def test_parts_that_a_larger_model_does_not_have_are_refused_by_name(tmp_path: Path, architecture: str) -> None:
    base = make_base(tmp_path / "base", TINY[WHOLE[architecture]])
    (base / "config.json").write_text(json.dumps(whole_config(architecture)))
    LLM(base, num_kv_blocks=8, num_threads=1).close()
    add_tensor(base, "depth_tower.layers.0.weight")
    with pytest.raises(ValueError, match=f"unexpected: depth_tower.layers.0.weight; {REMEDY}"):
        LLM(base, num_kv_blocks=8, num_threads=1)
