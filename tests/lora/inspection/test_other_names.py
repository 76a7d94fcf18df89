"""Bases whose embedding, layers or files are called otherwise than Llama's."""

import json
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, OPTConfig

from loraplex.engine.model.config import base_signature
from loraplex.lora.files.manifest import EMBEDDING
from loraplex.lora.inspection.inspection import inspect_adapter
from tests.checkpoints import make_adapter
from tests.engine.certify.test_reference_families import GPT2, OPT
from tests.engine.model.families.parity import make_base
from tests.engine.model.families.test_qwen3_5 import make_whole
from tests.lora.files.test_base_tensors import change_one, refusals, save

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the hub has it: no name begins with the model's."""
    return without_prefix(make_base(tmp_path_factory.mktemp("gpt2"), GPT2Config(**GPT2)), "transformer.")


@pytest.fixture(scope="module")
def opt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return without_prefix(make_base(tmp_path_factory.mktemp("opt"), OPTConfig(**OPT)), "model.")


def without_prefix(base: Path, prefix: str) -> Path:
    tensors = {name.removeprefix(prefix): tensor for name, tensor in load_file(base / WEIGHTS).items()}
    save_file(tensors, base / WEIGHTS, {"format": "pt"})
    return base


def untrained(folder: Path, base: Path, **settings: Any) -> Path:
    return save(folder, base, LoraConfig(r=4, task_type="CAUSAL_LM", **settings))


def assert_found(folder: Path, base: Path, trained: str) -> None:
    [message] = refusals(folder, base)
    assert message.startswith("the adapter has no effect")
    change_one(folder, lambda name: trained in name and "original" not in name)
    assert refusals(folder, base) == []


def test_what_repeats_the_base_is_found_under_its_files_names(tmp_path: Path, gpt2: Path, opt: Path) -> None:
    norms = {"target_modules": ["c_attn"], "modules_to_save": ["ln_1"]}
    assert_found(untrained(tmp_path / "norms", gpt2, **norms), gpt2, "ln_1")
    biases = {"target_modules": ["fc1"], "bias": "lora_only"}
    assert_found(untrained(tmp_path / "biases", opt, **biases), opt, "fc1.base_layer.bias")


def test_what_repeats_a_part_of_a_larger_model_is_found(tmp_path: Path) -> None:
    whole = make_whole(tmp_path / "whole")
    text = {name: it for name, it in load_file(whole / WEIGHTS).items() if not name.startswith(("model.visual", "mtp"))}
    base = tmp_path / "text"
    base.mkdir()
    save_file({name.replace("model.language_model.", "model."): it for name, it in text.items()}, base / WEIGHTS)
    config = json.loads((whole / "config.json").read_text())
    said = config["text_config"] | {"architectures": ["Qwen3_5ForCausalLM"]}
    (base / "config.json").write_text(json.dumps(said))
    folder = untrained(tmp_path / "norms", base, target_modules=["q_proj"], modules_to_save=["input_layernorm"])
    assert_found(folder, whole, "input_layernorm")


def test_the_embedding_has_the_bases_own_name(tmp_path: Path, gpt2: Path) -> None:
    indices = {"wte": [7, 300], "transformer.wte": [7]}
    for number, (name, tokens) in enumerate(indices.items()):
        folder = make_adapter(tmp_path / str(number), gpt2, kinds=("c_attn",), trainable_token_indices={name: tokens})
        assert json.loads((folder / "adapter_config.json").read_text())["trainable_token_indices"] == {name: tokens}
        config = (folder / "adapter_config.json").read_bytes()
        manifest = inspect_adapter(config, folder / "adapter_model.safetensors", base_signature(gpt2), gpt2).manifest
        assert manifest is not None
        [rows] = [module.rows for module in manifest.modules if module.kind == EMBEDDING]
        assert rows[0].tokens == tuple(tokens)
    config = json.loads(config) | {"trainable_token_indices": {"wpe": [7]}}
    found = inspect_adapter(json.dumps(config).encode(), folder / "adapter_model.safetensors", base_signature(gpt2))
    assert any("or ids by wte, lm_head" in failure.message for failure in found.failures())


def test_layers_have_the_bases_own_name(tmp_path: Path, gpt2: Path) -> None:
    folder = make_adapter(
        tmp_path / "own", gpt2, kinds=("c_attn",), layers_pattern="h", layers_to_transform=[1], fan_in_fan_out=True
    )
    assert refusals(folder, gpt2) == []
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"layers_pattern": "layers"}))
    assert refusals(folder, gpt2) == ["layers_pattern is 'layers'; layers must be under 'h'"]
