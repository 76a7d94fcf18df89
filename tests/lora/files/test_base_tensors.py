"""An adapter that only repeats what the base has already would answer as the base does: it is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, TrainableTokensConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers.models.auto import AutoModelForCausalLM

from loraplex import LLM
from loraplex.engine.model.config import base_signature
from loraplex.lora.inspection.inspection import inspect_adapter
from tests.checkpoints import make_checkpoint

WEIGHTS = "adapter_model.safetensors"
BASES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": torch.bfloat16},
    "tied": {"tie_word_embeddings": True},
}
UNTRAINED: dict[str, dict[str, Any]] = {
    "biases": {"bias": "all"},
    "biases-of-targets": {"bias": "lora_only", "target_modules": ["q_proj", "down_proj"]},
    "norms": {"modules_to_save": ["norm", "layers.1.input_layernorm"]},
    "head": {"modules_to_save": ["lm_head"]},
    "embedding": {"modules_to_save": ["embed_tokens"]},
    "tokens": {"trainable_token_indices": [7, 300, 11]},
    "lora-of-the-embedding": {"target_modules": ["embed_tokens"], "init_lora_weights": True, "bias": "all"},
    "dora": {"use_dora": True, "bias": "all"},
}


@pytest.fixture(scope="module", params=BASES)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"head_dim": 24, "attention_bias": True} | BASES[request.param]
    return make_checkpoint(tmp_path_factory.mktemp("base"), "llama", **settings)


def save(folder: Path, base: Path, config: Any, dtype: torch.dtype = torch.float32) -> Path:
    """As it is before the first step of training."""
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    model.save_pretrained(folder)
    return folder


def refusals(folder: Path, base: Path) -> list[str]:
    config = (folder / "adapter_config.json").read_bytes()
    return [found.message for found in inspect_adapter(config, folder / WEIGHTS, base_signature(base), base).failures()]


def change_one(folder: Path, wanted: Callable[[str], bool]) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = next(name for name in tensors if wanted(name))
    tensors[name].view(-1)[-1] += 0.25
    copy = name.replace(".weight", ".modules_to_save.weight")
    if copy in tensors:
        tensors[copy].copy_(tensors[name])
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", UNTRAINED)
def test_what_was_saved_before_training_is_refused(base: Path, case: str, dtype: torch.dtype, tmp_path: Path) -> None:
    settings = {"r": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"} | UNTRAINED[case]
    folder = save(tmp_path, base, LoraConfig(**settings), dtype)
    [message] = refusals(folder, base)
    assert message.startswith("the adapter has no effect")
    change_one(folder, lambda name: "lora_" not in name and "base_layer.weight" not in name and "original" not in name)
    assert refusals(folder, base) == []


def test_tokens_alone(base: Path, tmp_path: Path) -> None:
    folder = save(tmp_path, base, TrainableTokensConfig(token_indices=[300, 7], task_type="CAUSAL_LM"))
    [message] = refusals(folder, base)
    assert message.startswith("the adapter has no effect")
    with pytest.raises(ValueError, match="has no effect"):
        LLM(base, {"untrained": folder})
    change_one(folder, lambda name: True)
    assert refusals(folder, base) == []


def test_a_base_in_several_files(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base", "qwen2", num_attention_heads=2)
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).save_pretrained(base, max_shard_size="50KB")
    (base / "model.safetensors").unlink()
    assert (base / "model.safetensors.index.json").exists()
    folder = save(tmp_path / "a", base, LoraConfig(target_modules=["q_proj"], bias="all", task_type="CAUSAL_LM"))
    assert len(refusals(folder, base)) == 1
    change_one(folder, lambda name: name.endswith("1.self_attn.v_proj.bias"))
    assert refusals(folder, base) == []


def test_a_base_whose_files_do_not_say_is_no_reason_to_refuse(tmp_path: Path) -> None:
    """Quantized, or under other names."""
    base = make_checkpoint(tmp_path / "base", "qwen2", num_attention_heads=2)
    folder = save(tmp_path / "a", base, LoraConfig(target_modules=["q_proj"], bias="all", task_type="CAUSAL_LM"))
    for damage in (b"", b"\xff" * 9, (8).to_bytes(8, "little") + b'{"a": 1}'):
        (base / "model.safetensors").write_bytes(damage)
        assert refusals(folder, base) == []
    (base / "model.safetensors").unlink()
    assert refusals(folder, base) == []
