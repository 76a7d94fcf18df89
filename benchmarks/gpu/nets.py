"""Layers of gated delta nets with random states, steps over them, and what they must give there."""

from dataclasses import dataclass, replace
from typing import Final

import torch

from loraplex.engine.batch import Batch, StateSlots
from loraplex.engine.delta_net.backend import DeltaWeights, Projections
from loraplex.engine.delta_net.cuda import CudaDeltaNet
from loraplex.engine.delta_net.reference import State, mix_sequence
from loraplex.engine.delta_net.shape import StateShape

from .figure import TOLERANCE, Stage, require_close, require_same

FIRST: Final = 1000
"""Position of the token that a decode computes."""
SLOWEST: Final = 0.1
"""What a token leaves of a state is e to the minus this at least: what came many tokens ago counts."""
CLOSED: Final = -80.0
"""Of which the sigmoid is next to nothing: a token then changes no state."""
REFERENCE_TOKENS: Final = 256
"""Whose states are in memory at a time."""


@dataclass(frozen=True, eq=False)
class Net:
    """Layers of states, and a step of as many tokens for each sequence."""

    shape: StateShape
    backend: CudaDeltaNet
    layers: int
    weights: DeltaWeights
    batch: Batch
    projections: Projections
    tokens: int
    """Of each sequence."""

    @property
    def slots(self) -> torch.Tensor:
        assert self.batch.states is not None
        return self.batch.states.slots

    def mix(self, layer: int) -> torch.Tensor:
        return self.backend.mix(layer, self.projections, self.weights, self.batch)

    def state(self, layer: int, sequence: int) -> State:
        return self.backend.state(layer, int(self.slots[sequence]))

    @property
    def fresh(self) -> bool:
        return int(self.batch.positions[0]) == 0

    @property
    def moved(self) -> int:
        """Bytes that the step reads and writes at least, in one layer."""
        states = len(self.slots) * self.shape.slot_bytes * (1 if self.fresh else 2)
        parts = self.projections.qkv, self.projections.gate, self.projections.beta, self.projections.step
        return states + sum(part.nbytes for part in parts) + self.projections.gate.nbytes


def open_net(stage: Stage, shape: StateShape, sequences: int, tokens: int) -> Net:
    """Random states, also where a prefill may not look at them."""
    layers = stage.copies(2 * sequences * shape.slot_bytes)
    backend = CudaDeltaNet(shape, layers, sequences + 1, stage.device)
    for layer in range(layers):
        for slot in range(sequences + 1):
            for part in backend.state(layer, slot):
                part.normal_()
    heads, total = shape.num_value_heads, sequences * tokens
    weights = DeltaWeights(
        conv=torch.randn(shape.conv_kernel, shape.channels, device=stage.device) / 2,
        decay=SLOWEST * torch.rand(heads, device=stage.device),
        dt_bias=torch.randn(heads, device=stage.device),
        norm=1 + torch.rand(shape.value_head_dim, device=stage.device),
        eps=1e-6,
    )
    widths = shape.channels, shape.value_size, heads, heads
    projections = Projections(*(stage.random(total, width) for width in widths))
    return Net(shape, backend, layers, weights, step(stage, sequences, tokens), projections, tokens)


def step(stage: Stage, sequences: int, tokens: int) -> Batch:
    """Prompts from their first token on, or a decode."""
    device = stage.device
    empty = torch.empty(0, dtype=torch.int32, device=device)
    positions = torch.arange(tokens, device=device) + (FIRST if tokens == 1 else 0)
    states = StateSlots(
        slots=1 + torch.randperm(sequences, device=device).to(torch.int32),
        kept_starts=torch.zeros(sequences + 1, dtype=torch.int32, device=device),
        kept_tokens=empty,
        kept_slots=empty,
    )
    return Batch(
        token_ids=empty,
        positions=positions.repeat(sequences),
        slot_mapping=empty,
        query_starts=torch.arange(sequences + 1, dtype=torch.int32, device=device) * tokens,
        context_lengths=empty,
        block_tables=empty,
        sample_rows=empty,
        states=states,
    )


def check(net: Net) -> None:
    """Raises WrongResult unless the first and the last sequence get what float32 gives, and leave the state it does."""
    layer, count = net.layers - 1, len(net.slots)
    owned = {sequence: net.state(layer, sequence) for sequence in {0, count - 1}}
    old = {sequence: tuple(part.clone() for part in parts) for sequence, parts in owned.items()}
    found = net.mix(layer)
    for sequence, before in old.items():
        first = sequence * net.tokens
        own = some(net.projections, first, first + net.tokens)
        conv, recurrent = (torch.zeros_like(part) if net.fresh else part for part in before)
        wanted, state = follow(net, own, (conv, recurrent))
        require_close(found[first : first + net.tokens], wanted, TOLERANCE)
        for part, right in zip(owned[sequence], state, strict=True):
            require_close(part, right, TOLERANCE)
    for sequence, before in old.items():
        for part, kept in zip(owned[sequence], before, strict=True):
            part.copy_(kept)
    again = net.mix(layer)
    for sequence in old:
        own_rows = slice(sequence * net.tokens, (sequence + 1) * net.tokens)
        require_same(found[own_rows], again[own_rows])


def follow(net: Net, own: Projections, state: State) -> tuple[torch.Tensor, State]:
    """What one sequence gets, token by token, and its state behind the last."""
    outputs = []
    for first in range(0, net.tokens, REFERENCE_TOKENS):
        part = some(own, first, min(first + REFERENCE_TOKENS, net.tokens))
        output, states = mix_sequence(part, net.weights, net.shape, state)
        outputs.append(output)
        state = states[-1]
    return torch.cat(outputs), state


def some(projections: Projections, first: int, last: int) -> Projections:
    parts = projections.qkv, projections.gate, projections.beta, projections.step
    return Projections(*(part[first:last] for part in parts))


def steady(net: Net) -> Net:
    """The same work, that leaves each state as it was: the clock wants calls that give the same each time. A prefill
    begins anew by itself."""
    if net.fresh:
        return net
    inputs = net.projections.qkv.float()[:, None].expand(-1, net.shape.conv_kernel - 1, -1)
    for layer in range(net.layers):
        net.backend._conv[layer, net.slots.long()] = inputs
    projections = replace(net.projections, beta=torch.full_like(net.projections.beta, CLOSED))
    return replace(net, projections=projections, weights=replace(net.weights, decay=net.weights.decay * 0))
