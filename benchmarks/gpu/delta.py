"""The gated delta net: its least bytes over its time. The delta rule alone is measured beside flash-linear-attention's.

That package is optional.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Final

import torch
import torch.nn.functional as F

from loraplex.engine.delta_net.kernels.cuda.launch import Layer, Sequences, _recur
from loraplex.engine.delta_net.shape import StateShape

from .card import copy_rate
from .figure import Figure, Stage, Unsupported, require_close, seconds_of
from .nets import Net, check, open_net, steady
from .size import Size

PEER_TOLERANCE: Final = 0.05
"""Of results beside theirs, whose products within a chunk are of 16 bits."""
Rule = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def figures(size: Size) -> list[Figure]:
    sequences, (prompts, length) = size.net_decodes, size.net_prefill
    steps = {f"decode of {sequences} sequences": (sequences, 1), f"prefill of {prompts} x {length}": (prompts, length)}
    found = []
    for name, shape in size.nets:
        for what, (count, tokens) in steps.items():
            goal = 0.80 if tokens == 1 else None
            named = f"delta net, {name}, {what}: bytes of states and tokens a second / copy"
            found.append(Figure(named, "x", goal, partial(share_of_copy, shape, count, tokens)))
        for what, (count, tokens) in steps.items():
            named = f"delta net, {name}, {what}: time of the delta rule / flash-linear-attention's"
            found.append(Figure(named, "x", 1.0, partial(beside_peer, shape, count, tokens), at_least=False))
    return found


def share_of_copy(shape: StateShape, sequences: int, tokens: int, stage: Stage) -> float:
    net = open_net(stage, shape, sequences, tokens)
    check(net)
    net = steady(net)
    taken = seconds_of(stage, [partial(net.mix, layer) for layer in range(net.layers)])
    return net.moved / taken / copy_rate(stage)


def beside_peer(shape: StateShape, sequences: int, tokens: int, stage: Stage) -> float:
    """Of one launch. Ours norms queries and keys, and makes the decay and beta. Theirs only norms: it is given both."""
    rule, net = their_rule(tokens), open_net(stage, shape, sequences, tokens)
    mixed = stage.random(sequences * tokens, shape.channels)
    wanted = rule(**their_inputs(net, mixed, 0))[0]
    require_close(apply_rule(net, mixed.float(), 0).view_as(wanted), wanted, PEER_TOLERANCE)
    net = steady(net)
    layers = range(net.layers)
    taken = stage.clock.seconds(
        {
            "ours": [partial(apply_rule, net, mixed.float(), layer) for layer in layers],
            "theirs": [partial(rule, **their_inputs(net, mixed, layer)) for layer in layers],
        }
    )
    return taken["ours"] / taken["theirs"]


def apply_rule(net: Net, mixed: torch.Tensor, layer: int) -> torch.Tensor:
    """[T, H D] float32 of mixed [T, K] float32, as the convolution leaves it."""
    states, weights = net.batch.states, net.weights
    assert states is not None
    step = Sequences(
        net.batch.query_starts, net.batch.positions, states.slots, states.kept_starts, states.kept_tokens,
        states.kept_slots,
    )  # fmt: skip
    read = Layer(
        weights.conv, weights.decay, weights.dt_bias, weights.norm, weights.eps, net.backend._conv[layer],
        net.backend._recurrent[layer],
    )  # fmt: skip
    return _recur(mixed, net.projections.beta, net.projections.step, read, step)


def their_rule(tokens: int) -> Rule:
    """For one token of each sequence, or for prompts in chunks. Raises Unsupported."""
    try:
        rules = import_module("fla.ops.gated_delta_rule")
    except ImportError as error:
        raise Unsupported(f"flash-linear-attention cannot be imported: {error}") from None
    rule: Rule = rules.fused_recurrent_gated_delta_rule if tokens == 1 else rules.chunk_gated_delta_rule
    return rule


def their_inputs(net: Net, mixed: torch.Tensor, layer: int) -> dict[str, Any]:
    """Heads are [sequences, tokens, heads, size], with a query and a key for each value head. States are
    [sequences, H, E, D]."""
    shape, sequences = net.shape, len(net.slots)
    parts = torch.split(mixed, [shape.key_size, shape.key_size, shape.value_size], dim=1)
    query, key, value = (
        part.reshape(sequences, net.tokens, -1, size)
        for part, size in zip(parts, (shape.key_head_dim, shape.key_head_dim, shape.value_head_dim), strict=True)
    )
    group = shape.num_value_heads // shape.num_key_heads
    steps = F.softplus(net.projections.step.float() + net.weights.dt_bias)
    heads = (sequences, net.tokens, shape.num_value_heads)
    return {
        "q": query.repeat_interleave(group, dim=2),
        "k": key.repeat_interleave(group, dim=2),
        "v": value,
        "g": (-net.weights.decay * steps).view(heads),
        "beta": net.projections.beta.float().sigmoid().view(heads),
        "initial_state": None if net.fresh else net.backend._recurrent[layer, net.slots.long()],
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
    }
