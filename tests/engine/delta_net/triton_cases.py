"""The gated delta net for CUDA against float64, in triton's interpreter: test_triton_interpreted.py runs this alone.
It computes in fp32, so bfloat16 is what it is on a device.
"""

import pytest
import torch

from loraplex.engine.delta_net.backend import Projections
from loraplex.engine.delta_net.cuda import CudaDeltaNet
from loraplex.engine.delta_net.reference import empty_state, mix_sequence
from loraplex.engine.delta_net.shape import StateShape
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

from .cases import ODD, SHAPE, joined, make_batch, make_projections, make_weights, some

__all__ = ["one_patch_a_module", "poisoned_memory", "rounding"]
SLOTS = 6
SHAPES = pytest.mark.parametrize("shape", [SHAPE, ODD], ids=["vectors", "odd"])


def new_net(shape: StateShape) -> CudaDeltaNet:
    """What an earlier sequence left in a slot may not matter: it is NaN."""
    net = CudaDeltaNet(shape, 1, SLOTS, "cpu")
    for slot in range(SLOTS):
        for part in net.state(0, slot):
            part.fill_(float("nan"))
    return net


def check_state(net: CudaDeltaNet, slot: int, wanted: tuple[torch.Tensor, torch.Tensor]) -> None:
    for found, expected in zip(net.state(0, slot), wanted, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@SHAPES
def test_a_ragged_step_in_chunks_is_that_of_float64(shape: StateShape) -> None:
    """Two steps; on the way some states are kept, and a copied one goes on as the first does."""
    lengths, weights, net = [9, 1, 6], make_weights(shape), new_net(shape)
    sequences = [make_projections(length, shape, seed=20 * length) for length in lengths]
    expected = [mix_sequence(it, weights, shape, empty_state(shape, torch.float64)) for it in sequences]
    kept = [[(1, 4), (2, 5)], [], []]
    first = net.mix(
        0, joined([some(sequences[0], 0, 4), sequences[1], some(sequences[2], 0, 5)]), weights,
        make_batch([(0, 4, 1), (0, 1, 2), (0, 5, 3)], kept),
    )  # fmt: skip
    check_state(net, 4, expected[0][1][1])
    check_state(net, 5, expected[0][1][2])
    net.copy_states([(5, 4)])
    rest = net.mix(
        0, joined([some(sequences[2], 5, 6), some(sequences[0], 4, 9), some(sequences[0], 3, 9)]), weights,
        make_batch([(5, 1, 3), (4, 5, 1), (3, 6, 4)], [[], [(0, 2)], []]),
    )  # fmt: skip
    wanted = [expected[0][0][:4], expected[1][0], expected[2][0][:5], expected[2][0][5:], expected[0][0][4:]]
    found = torch.cat([first, rest]).double()
    torch.testing.assert_close(found, torch.cat([*wanted, expected[0][0][3:]]), rtol=2e-5, atol=2e-5)
    check_state(net, 2, expected[0][1][4])
    for slot, (_, behind) in ((1, expected[0]), (3, expected[2]), (4, expected[0])):
        check_state(net, slot, behind[-1])


def test_chunks_and_neighbours_change_no_bit() -> None:
    weights, whole, other = make_weights(), make_projections(7), make_projections(3, seed=99)
    alone, net = new_net(SHAPE), new_net(SHAPE)
    expected = alone.mix(0, whole, weights, make_batch([(0, 7, 1)]))
    first = net.mix(0, joined([other, some(whole, 0, 2)]), weights, make_batch([(0, 3, 4), (0, 2, 2)]))
    second = net.mix(0, some(whole, 2, 7), weights, make_batch([(2, 5, 2)]))
    assert torch.equal(torch.cat([first[3:], second]), expected)
    assert all(torch.equal(*pair) for pair in zip(net.state(0, 2), alone.state(0, 1), strict=True))


def test_a_padded_decode_touches_no_state_of_others() -> None:
    """Rows behind the last sequence are padding, in the padding slot, as a captured step has them."""
    weights, tokens, net = make_weights(), make_projections(4), new_net(SHAPE)
    net.mix(0, some(tokens, 0, 2), weights, make_batch([(0, 1, 1), (0, 1, 2)]))
    plain, padded = new_net(SHAPE), make_batch([(1, 1, 1), (1, 1, 2), (0, 1, 0), (0, 1, 0)])
    plain.mix(0, some(tokens, 0, 2), weights, make_batch([(0, 1, 1), (0, 1, 2)]))
    padded.query_starts[3:] = 2
    output = net.mix(0, tokens, weights, padded)
    expected = plain.mix(0, some(tokens, 0, 2), weights, make_batch([(1, 1, 1), (1, 1, 2)]))
    assert torch.equal(output[:2], expected)
    for slot in range(SLOTS):
        for found, wanted in zip(net.state(0, slot), plain.state(0, slot), strict=True):
            assert torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0))


def test_a_padded_step_with_prompts_keeps_what_it_is_told_and_nothing_else() -> None:
    """Of sequences that are idle, and past the last state that is kept, whatever an earlier step left there."""
    weights, tokens, net, plain = make_weights(), make_projections(9), new_net(SHAPE), new_net(SHAPE)
    parts, kept = [(0, 4, 1), (0, 1, 2)], [[(0, 4), (2, 5)], []]
    expected = plain.mix(0, some(tokens, 0, 5), weights, make_batch(parts, kept))
    padded = make_batch([*parts, (0, 1, 0), (0, 1, 0), (0, 1, 0), (0, 1, 0)], [*kept, *[[] for _ in range(4)]])
    padded.query_starts[3:] = 5
    assert padded.states is not None
    left = torch.tensor([3, 3, 3], dtype=torch.int32)
    padded.states.kept_tokens = torch.cat([padded.states.kept_tokens, left])
    padded.states.kept_slots = torch.cat([padded.states.kept_slots, left])
    assert torch.equal(net.mix(0, tokens, weights, padded)[:5], expected)
    for slot in range(SLOTS):
        for found, wanted in zip(net.state(0, slot), plain.state(0, slot), strict=True):
            assert torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0))


def test_projections_in_bfloat16_are_read_as_they_are() -> None:
    weights, tokens = make_weights(), make_projections(5)
    short = Projections(*(part.bfloat16() for part in (tokens.qkv, tokens.gate, tokens.beta, tokens.step)))
    wide = Projections(*(part.float() for part in (short.qkv, short.gate, short.beta, short.step)))
    batch = make_batch([(0, 5, 1)])
    found, expected = (new_net(SHAPE).mix(0, part, weights, batch) for part in (short, wide))
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected.bfloat16())
