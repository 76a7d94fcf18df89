from pathlib import Path

import pytest
import torch

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.layer_inputs import GATE_UP, INPUTS, OUTPUT
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.quantize.fold import folded, shared_magnitudes, storable_scales
from loraplex.engine.quantize.forward import layer_forward
from tests.checkpoints import make_checkpoint


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_folding_leaves_the_layer_what_it_was(tmp_path: Path, family: str) -> None:
    folder = make_checkpoint(
        tmp_path, family, **({"attention_bias": True, "mlp_bias": True} if family == "llama" else {})
    )
    config, checkpoint = ModelConfig.from_folder(folder), Checkpoint(folder)
    prefix, generator = "model.layers.1.", torch.Generator().manual_seed(0)
    names = [name for name in checkpoint if name.startswith(prefix)]
    tensors = {name.removeprefix(prefix): checkpoint.tensor(name).double() for name in names}
    layer = layer_forward(config.spec.layers[1], 16)
    x = torch.randn(2, 16, config.hidden_size, generator=generator, dtype=torch.float64)
    inputs: dict[str, torch.Tensor] = {}
    before = layer.apply(tensors, x, inputs.__setitem__)
    inputs_after, scales = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for place in INPUTS:
        magnitudes = torch.rand(inputs[place].shape[1], generator=generator, dtype=torch.float64) * 3 + 0.1
        scales[place] = shared_magnitudes(place, magnitudes, config)
    parts = {name: [slice(0, 3), slice(3, len(tensor))] for name, tensor in tensors.items()}
    changed = {
        name: torch.cat([folded(name, tensor[rows], scales, config, rows) for rows in parts[name]])
        for name, tensor in tensors.items()
    }
    after = layer.apply(changed, x, inputs_after.__setitem__)
    assert torch.allclose(after, before, rtol=1e-12, atol=1e-12)
    for place in INPUTS:
        assert torch.allclose(inputs_after[place] * scales[place], inputs[place], rtol=1e-12, atol=1e-12), place


def test_query_heads_of_one_value_head_share_their_scales(tmp_path: Path) -> None:
    config = ModelConfig.from_folder(make_checkpoint(tmp_path))
    shared = shared_magnitudes(OUTPUT, torch.arange(64.0), config).reshape(4, 16)
    assert torch.equal(shared[0], shared[1]) and torch.equal(shared[2], shared[3])
    assert shared[0].tolist() == [index + 8.0 for index in range(16)]
    other = torch.rand(64)
    assert shared_magnitudes(GATE_UP, other, config) is other


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
def test_a_folded_norm_is_stored_without_rounding(stored: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    norm = (torch.randn(500, generator=generator) * 2).to(stored).float()
    norm[7] = 0
    wanted = torch.rand(500, generator=generator) * 3 + 0.05
    scales = storable_scales(wanted, norm, stored)
    assert torch.allclose((norm / scales).to(stored).float() * scales, norm, rtol=2e-7)
    assert scales[7] == 1 and torch.allclose(scales[norm != 0], wanted[norm != 0], rtol=2**-7)
