from pathlib import Path
from typing import Final

import pytest
import torch

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.layer_inputs import inputs_of
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.quantize.float_layers import stored_layer
from loraplex.engine.quantize.fold import folded, storable_scales
from loraplex.engine.quantize.plain.forward import layer_forward
from tests.checkpoints import make_checkpoint
from tests.engine.certify.test_reference_families import BASES
from tests.engine.model.families.parity import make_base
from tests.engine.model.families.test_gemma import CONFIGS

LLAMA: Final = ["self_attn.qkv", "self_attn.o_proj", "mlp.gate_up", "mlp.down_proj"]
FOLDED: Final[dict[str, list[str]]] = {
    "llama": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "opt": ["self_attn.qkv", "self_attn.out_proj", "fc1", "fc2"],
    "opt-projected": ["self_attn.out_proj", "fc2"],
    "gpt2": ["attn.c_attn", "mlp.c_fc"],
    "gemma2-whole-heads": LLAMA,
    "qwen3_5": ["linear_attn.in_proj_qkv", "mlp.gate_up", "mlp.down_proj"],
}
"""Inputs of the second layer that something makes."""


def make(folder: Path, family: str) -> Path:
    if family in BASES or family in CONFIGS:
        return make_base(folder, (BASES | CONFIGS)[family])
    return make_checkpoint(folder, family, **({"attention_bias": True, "mlp_bias": True} if family == "llama" else {}))


@pytest.mark.parametrize("family", FOLDED)
def test_folding_leaves_the_layer_what_it_was(tmp_path: Path, family: str) -> None:
    config = ModelConfig.from_folder(make(tmp_path, family))
    layers = (0, 1) if family == "qwen3_5" else (1,)
    for layer in layers:
        _check(config, Checkpoint(tmp_path, config.spec), layer)
    assert [at.place for at in inputs_of(config.spec, 1) if at.maker is not None] == FOLDED[family]


def _check(config: ModelConfig, checkpoint: Checkpoint, number: int) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = inputs_of(config.spec, number)
    tensors = {name: tensor.double() for name, tensor in stored_layer(config.spec, checkpoint, number).items()}
    layer = layer_forward(config.spec.layers[number], 16)
    x = torch.randn(2, 16, config.hidden_size, generator=generator, dtype=torch.float64)
    seen: dict[str, torch.Tensor] = {}
    before = layer.apply(tensors, x, seen.__setitem__)
    assert list(seen) == [at.place for at in inputs]
    seen_after, scales = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for at in inputs:
        if at.maker is not None:
            magnitudes = torch.rand(seen[at.place].shape[1], generator=generator, dtype=torch.float64) * 3 + 0.1
            scales[at.place] = at.shared(magnitudes)
    parts = {name: [slice(0, 3), slice(3, len(tensor))] for name, tensor in tensors.items()}
    changed = {
        name: torch.cat([folded(name, tensor[rows], scales, inputs, rows) for rows in parts[name]])
        for name, tensor in tensors.items()
    }
    after = layer.apply(changed, x, seen_after.__setitem__)
    assert torch.allclose(after, before, rtol=1e-12, atol=1e-12)
    for place, read in seen.items():
        assert torch.allclose(seen_after[place] * scales.get(place, 1.0), read, rtol=1e-12, atol=1e-12), place


def test_query_heads_of_one_value_head_share_their_scales(tmp_path: Path) -> None:
    config = ModelConfig.from_folder(make_checkpoint(tmp_path))
    output, gate_up = inputs_of(config.spec, 0)[1:3]
    shared = output.shared(torch.arange(64.0)).reshape(4, 16)
    assert torch.equal(shared[0], shared[1]) and torch.equal(shared[2], shared[3])
    assert shared[0].tolist() == [index + 8.0 for index in range(16)]
    other = torch.rand(64)
    assert gate_up.shared(other) is other


@pytest.mark.parametrize("adds_one", [False, True])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
def test_a_folded_norm_is_stored_without_rounding(stored: torch.dtype, adds_one: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    norm = (torch.randn(500, generator=generator) * 2).to(stored).float()
    norm[7] = -1.0 if adds_one else 0.0
    wanted = torch.rand(500, generator=generator) * 3 + 0.05
    scales, origin = storable_scales(wanted, norm, stored, adds_one), float(adds_one)
    kept = ((norm + origin) / scales - origin).to(stored).float() + origin
    assert torch.allclose(kept * scales, norm + origin, rtol=4e-7)
    assert bool((scales > 0).all()) and scales[7] == 1.0
