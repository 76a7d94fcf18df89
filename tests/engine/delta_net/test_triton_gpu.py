"""The gated delta net on a CUDA device, with the heads of Qwen3.5."""

import pytest
import torch

from loraplex.engine.delta_net.backend import DeltaWeights, Projections
from loraplex.engine.delta_net.cpu import CpuDeltaNet
from loraplex.engine.delta_net.shape import StateShape

from .cases import make_batch, make_projections, make_weights

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
SHAPE = StateShape(num_key_heads=16, num_value_heads=32, key_head_dim=128, value_head_dim=128, conv_kernel=4)


def test_steps_are_those_of_the_cpu() -> None:
    from loraplex.engine.delta_net.cuda import CudaDeltaNet

    weights = make_weights(SHAPE)
    there = DeltaWeights(
        conv=weights.conv.to(CUDA),
        decay=weights.decay.to(CUDA),
        dt_bias=weights.dt_bias.to(CUDA),
        norm=weights.norm.to(CUDA),
        eps=weights.eps,
    )
    here, device = CpuDeltaNet(SHAPE, 1, 40), CudaDeltaNet(SHAPE, 1, 40, CUDA)
    for step, lengths in enumerate([[300, 1, 77], [1] * 16, [5, 1, 1, 64]]):
        wide = make_projections(sum(lengths), SHAPE, seed=step)
        parts = (wide.qkv, wide.gate, wide.beta, wide.step)
        batch = make_batch([(step * 400, length, slot) for slot, length in enumerate(lengths, 1)])
        expected = here.mix(0, wide, weights, batch)
        assert batch.states is not None
        batch.query_starts, batch.positions = batch.query_starts.to(CUDA), batch.positions.to(CUDA)
        for name in ("slots", "kept_starts", "kept_tokens", "kept_slots"):
            setattr(batch.states, name, getattr(batch.states, name).to(CUDA))
        found = device.mix(0, Projections(*(part.to(CUDA) for part in parts)), there, batch)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
