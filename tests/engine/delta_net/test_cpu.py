"""The gated delta net on a CPU against float64, token by token, and against transformers' own layer."""

import pytest
import torch
from transformers.cache_utils import DynamicCache
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet, torch_recurrent_gated_delta_rule

from loraplex.engine.delta_net.backend import DeltaWeights, Projections
from loraplex.engine.delta_net.cpu import CpuDeltaNet
from loraplex.engine.delta_net.reference import empty_state, mix_sequence
from loraplex.engine.delta_net.shape import StateShape

from .cases import ODD, SHAPE, Part, joined, make_batch, make_projections, make_weights, some

SLOTS = 6
SHAPES = pytest.mark.parametrize("shape", [SHAPE, ODD], ids=["compiled", "odd"])


def new_net(shape: StateShape = SHAPE, layers: int = 1) -> CpuDeltaNet:
    net = CpuDeltaNet(shape, layers, SLOTS)
    # What an earlier sequence left in a slot may not matter.
    net.copy_states([(0, slot) for slot in range(1, SLOTS)])
    everything = make_projections(SLOTS, shape, seed=77)
    for layer in range(layers):
        net.mix(layer, everything, make_weights(shape, 78), make_batch([(0, 1, slot) for slot in range(SLOTS)]))
    return net


def states(net: CpuDeltaNet, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
    return net.state(0, slot)


@SHAPES
def test_a_ragged_step_is_that_of_float64(shape: StateShape) -> None:
    lengths, weights, net = [37, 1, 5, 64], make_weights(shape), new_net(shape)
    sequences = [make_projections(length, shape, seed=20 * length) for length in lengths]
    parts = [(0, length, slot) for slot, length in enumerate(lengths, 1)]
    output = net.mix(0, joined(sequences), weights, make_batch(parts))
    expected = [mix_sequence(it, weights, shape, empty_state(shape, torch.float64)) for it in sequences]
    torch.testing.assert_close(output.double(), torch.cat([it[0] for it in expected]), rtol=2e-5, atol=2e-5)
    for slot, (_, behind) in enumerate(expected, 1):
        for found, wanted in zip(states(net, slot), behind[-1], strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@SHAPES
@pytest.mark.parametrize("cuts", [[1] * 23, [2, 1, 20], [16, 7], [3, 17, 3]])
def test_chunks_and_neighbours_change_no_bit(shape: StateShape, cuts: list[int]) -> None:
    weights, whole = make_weights(shape), make_projections(23, shape)
    alone = new_net(shape)
    expected = alone.mix(0, whole, weights, make_batch([(0, 23, 1)]))
    net, other, outputs, start = new_net(shape), make_projections(40, shape, seed=99), [], 0
    for index, count in enumerate(cuts):
        beside: Part = (0, index % 3 + 1, 4)
        mixed = [some(other, 0, beside[1]), some(whole, start, start + count), some(other, 5, 6)]
        batch = make_batch([beside, (start, count, 2), (0, 1, 5)])
        output = net.mix(0, joined(mixed), weights, batch)
        outputs.append(output[beside[1] : beside[1] + count])
        start += count
    assert torch.equal(torch.cat(outputs), expected)
    for found, wanted in zip(states(net, 2), states(alone, 1), strict=True):
        assert torch.equal(found, wanted)


@SHAPES
def test_states_kept_on_the_way_are_those_of_shorter_texts(shape: StateShape) -> None:
    weights, whole, net = make_weights(shape), make_projections(20, shape), new_net(shape)
    net.mix(0, some(whole, 0, 2), weights, make_batch([(0, 2, 1)]))
    beside = make_projections(3, shape, seed=5)
    batch = make_batch([(0, 3, 4), (2, 18, 1)], kept=[[(1, 5)], [(0, 2), (13, 3)]])
    net.mix(0, joined([beside, some(whole, 2, 20)]), weights, batch)
    shorter = new_net(shape)
    for slot, tokens in ((1, 20), (2, 3), (3, 16)):
        shorter.mix(0, some(whole, 0, tokens), weights, make_batch([(0, tokens, slot)]))
    shorter.mix(0, some(beside, 0, 2), weights, make_batch([(0, 2, 5)]))
    for slot in (1, 2, 3, 5):
        for found, wanted in zip(states(net, slot), states(shorter, slot), strict=True):
            assert torch.equal(found, wanted)


def test_a_copied_state_goes_on_as_the_first_does() -> None:
    weights, whole, net = make_weights(), make_projections(9), new_net(layers=2)
    for layer in range(2):
        net.mix(layer, some(whole, 0, 8), weights, make_batch([(0, 8, 1)]))
    net.copy_states([(1, 3)])
    last = some(whole, 8, 9)
    for layer in range(2):
        output = net.mix(layer, joined([last, last]), weights, make_batch([(8, 1, 1), (8, 1, 3)]))
        assert torch.equal(output[0], output[1])


@SHAPES
def test_numbers_that_are_none_stay_with_their_sequence(shape: StateShape) -> None:
    weights, whole, net = make_weights(shape), make_projections(6, shape), new_net(shape)
    broken = make_projections(6, shape, seed=50)
    broken.qkv[2, 3], broken.step[1] = float("nan"), float("inf")
    output = net.mix(0, joined([broken, whole]), weights, make_batch([(0, 6, 1), (0, 6, 2)]))
    assert not output[:6].isfinite().all()
    assert torch.equal(output[6:], new_net(shape).mix(0, whole, weights, make_batch([(0, 6, 2)])))
    # Who has the slot next begins with zeros.
    assert torch.equal(net.mix(0, whole, weights, make_batch([(0, 6, 1)])), output[6:])


def test_bytes_are_those_that_the_shape_tells() -> None:
    assert CpuDeltaNet(SHAPE, 3, SLOTS).state_bytes() == 3 * SLOTS * SHAPE.slot_bytes


def test_the_recurrence_is_that_of_transformers() -> None:
    weights, tokens, heads = make_weights(), make_projections(30), SHAPE.num_value_heads
    _, behind = mix_sequence(tokens, weights, SHAPE, empty_state(SHAPE, torch.float64))
    inputs = torch.cat([torch.zeros(3, SHAPE.channels), tokens.qkv]).double()
    mixed = torch.stack([(inputs[t : t + 4] * weights.conv).sum(0) for t in range(30)])
    query, key, value = torch.nn.functional.silu(mixed).split([SHAPE.key_size, SHAPE.key_size, SHAPE.value_size], -1)
    decay = -weights.decay * torch.nn.functional.softplus((tokens.step + weights.dt_bias).double())
    _, state = torch_recurrent_gated_delta_rule(
        query.view(1, 30, SHAPE.num_key_heads, -1),
        key.view(1, 30, SHAPE.num_key_heads, -1),
        value.view(1, 30, heads, -1),
        g=decay[None],
        beta=tokens.beta.double().sigmoid()[None],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    # transformers sums in float32.
    torch.testing.assert_close(behind[-1][1].float(), state[0].float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [SHAPE, ODD], ids=["compiled", "odd"])
def test_a_layer_of_qwen_3_5_within_1e_5(shape: StateShape) -> None:
    """A prompt in chunks, then decodes, with a cache of transformers' own beside."""
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        hidden_size=40,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=shape.num_key_heads,
        linear_num_value_heads=shape.num_value_heads,
        linear_key_head_dim=shape.key_head_dim,
        linear_value_head_dim=shape.value_head_dim,
        linear_conv_kernel_dim=shape.conv_kernel,
    )
    layer = Qwen3_5GatedDeltaNet(config, 0).float().eval()
    weights = DeltaWeights(
        conv=layer.conv1d.weight.detach()[:, 0].T.contiguous(),
        decay=layer.A_log.detach().exp(),
        dt_bias=layer.dt_bias.detach(),
        norm=layer.norm.weight.detach(),
        eps=config.rms_norm_eps,
    )
    net, cache, position = new_net(shape), DynamicCache(config=config), 0
    for count in (19, 5, 1, 1, 1):
        x = torch.randn(1, count, 40)
        with torch.no_grad():
            expected = layer(x, cache=cache)[0]
            projections = Projections(
                *(linear(x[0]) for linear in (layer.in_proj_qkv, layer.in_proj_z, layer.in_proj_b, layer.in_proj_a))
            )
            found = layer.out_proj(net.mix(0, projections, weights, make_batch([(position, count, 3)])))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        position += count
