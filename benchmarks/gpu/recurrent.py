"""The gated delta net: decodes beside the speed of memory, and a token of a prompt beside one of a decode."""

from functools import partial
from typing import Final, NamedTuple

import torch

from loraplex.engine.batch import Batch, StateSlots
from loraplex.engine.delta_net.backend import DeltaWeights, Projections
from loraplex.engine.delta_net.cuda import CudaDeltaNet
from loraplex.engine.delta_net.reference import empty_state, mix_sequence
from loraplex.engine.delta_net.shape import StateShape

from .card import copy_rate
from .figure import TOLERANCE, Figure, Stage, require_close, seconds_of
from .size import Size

CHECKED: Final = 3
"""Tokens that are computed again by torch, one by one."""


class Filled(NamedTuple):
    net: CudaDeltaNet
    weights: DeltaWeights
    shape: StateShape
    layers: int


def figures(size: Size) -> list[Figure]:
    sequences, prompt = size.decode[0], size.few_rows[-1] * size.rank
    what = f"gated delta net, {size.heads} heads of {size.head_dim}"
    return [
        Figure(f"{what}: decode of {sequences} states: bytes a second / copy", "x", None, share_of_copy),
        Figure(
            f"{what}: prompt of {prompt} tokens: time of a token / of a decode of one state",
            "x", None, partial(prompt_ratio, prompt), at_least=False,
        ),
    ]  # fmt: skip


def share_of_copy(stage: Stage) -> float:
    sequences = stage.size.decode[0]
    filled = fill(stage, sequences)
    calls = [
        partial(
            filled.net.mix, layer, inputs(stage, filled.shape, sequences), filled.weights, step(stage, sequences, 1)
        )
        for layer in range(filled.layers)
    ]
    return 2 * filled.shape.slot_bytes * sequences / seconds_of(stage, calls) / copy_rate(stage)


def prompt_ratio(tokens: int, stage: Stage) -> float:
    filled = fill(stage, 1)
    sides = {
        name: [
            partial(filled.net.mix, layer, inputs(stage, filled.shape, count), filled.weights, step(stage, 1, count))
            for layer in range(filled.layers)
        ]
        for name, count in (("prompt", tokens), ("decode", 1))
    }
    taken = stage.clock.seconds(sides)
    return taken["prompt"] / tokens / taken["decode"]


def fill(stage: Stage, sequences: int) -> Filled:
    """Raises WrongResult unless a short prompt is what torch makes of it."""
    size, device = stage.size, stage.device
    shape = StateShape(
        num_key_heads=size.heads, num_value_heads=size.heads, key_head_dim=size.head_dim, value_head_dim=size.head_dim,
        conv_kernel=4,
    )  # fmt: skip
    layers = stage.copies(2 * shape.slot_bytes * sequences)
    heads = size.heads
    weights = DeltaWeights(
        conv=torch.randn(4, shape.channels, device=device) / 2,
        decay=torch.rand(heads, device=device),
        dt_bias=torch.randn(heads, device=device),
        norm=torch.rand(size.head_dim, device=device) + 0.5,
        eps=1e-6,
    )
    net = CudaDeltaNet(shape, layers, sequences + 1, device)
    short = inputs(stage, shape, CHECKED)
    wide = Projections(*(part.float().cpu() for part in (short.qkv, short.gate, short.beta, short.step)))
    here = DeltaWeights(
        conv=weights.conv.cpu(), decay=weights.decay.cpu(), dt_bias=weights.dt_bias.cpu(), norm=weights.norm.cpu(),
        eps=weights.eps,
    )  # fmt: skip
    wanted, _ = mix_sequence(wide, here, shape, empty_state(shape))
    found = net.mix(0, short, weights, step(stage, 1, CHECKED, first=0))
    require_close(found, wanted.to(device), TOLERANCE)
    return Filled(net, weights, shape, layers)


def inputs(stage: Stage, shape: StateShape, tokens: int) -> Projections:
    heads = shape.num_value_heads
    widths = (shape.channels, shape.value_size, heads, heads)
    return Projections(*(stage.random(tokens, width) for width in widths))


def step(stage: Stage, sequences: int, tokens: int, first: int = 1) -> Batch:
    """Each sequence goes on at position `first`, with a slot of its own behind the padding one."""

    def numbers(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=stage.device)

    none = torch.empty(0, dtype=torch.int64, device=stage.device)
    return Batch(
        token_ids=none,
        positions=torch.full((sequences * tokens,), first, device=stage.device),
        slot_mapping=none,
        query_starts=numbers(*range(0, sequences * tokens + 1, tokens)),
        context_lengths=none,
        block_tables=none,
        sample_rows=none,
        states=StateSlots(numbers(*range(1, sequences + 1)), numbers(*[0] * (sequences + 1)), numbers(), numbers()),
    )
