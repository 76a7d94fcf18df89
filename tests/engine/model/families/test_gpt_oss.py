"""gpt-oss where it differs from other mixtures: weights in MXFP4, the clamp, and what config.json may say."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.decoder_loader import DecoderLoader
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.model.operations.cpu import OPERATIONS
from loraplex.quant.schemes.choose import choose_scheme

from .parity import SHOWN, TOKENS, Shown, check_family, make_family

SHAPE: dict[str, Any] = TOKENS | {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 16, "num_local_experts": 5,
    "num_experts_per_tok": 2, "sliding_window": 9,
}  # fmt: skip
ADAPTERS = {"one": {"rank": 4, "kinds": ("q_proj", "o_proj")}}


def test_mxfp4_experts_are_read_as_stored(tmp_path: Path) -> None:
    """transformers widens them to floats by its own code."""
    family = make_family(tmp_path, GptOssConfig(**SHAPE), ADAPTERS, change=in_mxfp4)
    check_family(family)
    SHOWN.append(Shown(ModelConfig.from_folder(family.base).architecture, stored="MXFP4"))


@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16], ids=str)
def test_mxfp4_experts_take_in_memory_what_they_take_in_the_file(tmp_path: Path, storage: torch.dtype) -> None:
    """And five bytes an output: its bias, and zero points that are one for all blocks."""
    base = make_family(tmp_path, GptOssConfig(**SHAPE), {}, change=in_mxfp4).base
    config = ModelConfig.from_folder(base)
    checkpoint = Checkpoint(base, config.spec)
    decoder = DecoderLoader(config, checkpoint, choose_scheme(torch.device("cpu"), storage), storage).load(64)
    stored = load_file(base / "model.safetensors")
    expected = sum(tensor.nbytes for name, tensor in stored.items() if name.endswith(("_blocks", "_scales")))
    expected += 5 * sum(tensor[..., 0, 0].numel() for name, tensor in stored.items() if name.endswith("_blocks"))
    experts = [layer.feed_forward for layer in decoder.layers]
    methods = [linear.method for one in experts for side in (one.inputs, one.outputs) for linear in side.linears]
    assert sum(method.weight_bytes() for method in methods) == expected


@pytest.mark.parametrize("inputs", [24, 20])
def test_the_clamped_gate_is_transformers_own(inputs: int) -> None:
    """Also far beyond the clamp."""
    gate_up = torch.randn(50, 2 * inputs, generator=torch.Generator().manual_seed(0)) * 8
    experts = GptOssExperts(GptOssConfig(**SHAPE))
    in_turns = torch.stack(gate_up.chunk(2, dim=-1), dim=-1).flatten(1)
    found = OPERATIONS.multiply_gate(gate_up, "clamped_swiglu")
    assert gate_up.abs().max() > 20
    torch.testing.assert_close(found, experts._apply_gate(in_turns))


def in_mxfp4(base: Path) -> None:
    """Random experts in place of those of the checkpoint, as openai/gpt-oss-20b stores them."""
    generator = torch.Generator().manual_seed(7)
    file = base / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        shape = (experts, outputs, inputs // 32)
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
        tensors[f"{name}_scales"] = torch.randint(120, 125, shape, dtype=torch.uint8, generator=generator)
    save_file(tensors, file, {"format": "pt"})
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
