"""What the compiled call reads of a decoder: a row of numbers for each layer, and what is before and behind them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from loraplex.quant.kernels.any_linear import WIDTH

from ...kernels.activations import CODES, activation_address
from ...kernels.arrays import as_array
from ..decoder import Decoder
from ..kernels import arguments
from ..layers import Attention, DecoderLayer, DeltaNet, FeedForward
from .fits import Linear, is_known, layer_norms
from .modules import Modules, distinct


def make_model(decoder: Decoder, modules: Sequence[Modules], head: Linear | None) -> arguments.Model:
    """Without adapters. modules: layer by layer. head: None where the ends are not compiled: one row of zeros is the
    embedding, and nothing else is there."""
    layers, embedding, norm = decoder.layers, decoder.embedding, None if head is None else decoder.norm
    hidden, nothing = layers[0].mixer.inputs.method.in_features, np.empty(0, np.float32)
    positions = None if head is None else embedding.positions
    feed_forwards = [_feed_forward(layer) for layer in layers]
    is_simple = all((it.activation, it.is_gated) == ("silu", True) for it in feed_forwards)
    sets = distinct(modules)
    return arguments.Model(
        table=np.array([_row(layer, sets.index(one)) for layer, one in zip(layers, modules, strict=True)]),
        numbers=np.array([_numbers(layer) for layer in layers], np.float32),
        embedding=as_array(embedding.table if head is not None else embedding.table.new_zeros(1, hidden)),
        embedding_scale=np.float32(1 if head is None else embedding.scale),
        positions=nothing.reshape(0, hidden) if positions is None else positions.numpy(),
        norm=nothing if norm is None else norm.weight.numpy(),
        norm_bias=nothing if norm is None or norm.bias is None else norm.bias.numpy(),
        eps=np.float32(0 if norm is None else norm.eps),
        head=np.array([0] * WIDTH if head is None else head.where()),
        activate=0 if is_simple else activation_address(),
        groups=np.array([np.cumsum([0, *(len(group) for group in one.groups)]) for one in sets]),
        kinds=np.empty((len(sets), 0), np.int64),
        firsts=_firsts(sets),
        norm_kinds=np.empty((len(sets), arguments.ALL_NORMS), np.int64),
        ordinals=np.zeros((len(layers), arguments.GROUPS + arguments.ALL_NORMS), np.int64),
    )


def _row(layer: DecoderLayer, modules: int) -> list[int]:
    """Of the kernels' table."""
    feed_forward, mixer = _feed_forward(layer), layer.mixer
    assert isinstance(mixer, Attention | DeltaNet)
    norms = [(None, None) if norm is None else (norm.weight, norm.bias) for norm in layer_norms(layer)]
    vectors = [*(weight for weight, _ in norms), *(bias for _, bias in norms)]
    linears = [linear.method for linear in layer.linears()]
    row = [
        *map(_address, vectors),
        *(_attention_row(mixer) if isinstance(mixer, Attention) else _recurrent_row(mixer)),
        CODES[feed_forward.activation],
        *(feed_forward.is_gated, layer.norms_follow_sum, isinstance(mixer, DeltaNet), mixer.place, modules),
        *(size for linear in linears for size in (linear.in_features, sum(linear.out_features))),
        *(number for linear in linears if is_known(linear) for number in linear.where()),
    ]
    assert len(row) == arguments.COLUMNS
    return row


def _attention_row(mixer: Attention) -> list[int]:
    rotary = mixer.rotary
    return [
        *map(_address, (rotary.query_norm, rotary.key_norm, rotary.cos, rotary.sin, rotary.query_scale)),
        *(0 if norm is None else len(norm) for norm in (rotary.query_norm, rotary.key_norm)),
        *((1, 0) if rotary.cos is None else rotary.cos.shape),
        0 if rotary.query_scale is None else len(rotary.query_scale),
        *(rotary.interleaved, rotary.value_norm, mixer.gated_heads > 0),
    ]


def _recurrent_row(mixer: DeltaNet) -> list[int]:
    weights = mixer.weights
    addresses = map(_address, (weights.conv, weights.decay, weights.dt_bias, weights.norm))
    return [*addresses, *[0] * (arguments.ACTIVATION - arguments.DELTA_NORM - 1)]


def _address(vector: torch.Tensor | None) -> int:
    return 0 if vector is None else vector.data_ptr()


def _numbers(layer: DecoderLayer) -> list[float]:
    mixer = layer.mixer
    assert isinstance(mixer, Attention | DeltaNet)
    own = mixer.rotary.eps if isinstance(mixer, Attention) else mixer.weights.eps
    return [*(0.0 if norm is None else norm.eps for norm in layer_norms(layer)), own, layer.residual_scale]


def _firsts(sets: list[Modules]) -> Any:
    most = max(len(widths) for one in sets for widths in one.widths)
    firsts = np.zeros((len(sets), arguments.GROUPS, most + 1), np.int64)
    for row, one in zip(firsts, sets, strict=True):
        for group, widths in zip(row, one.widths, strict=True):
            group[1 : len(widths) + 1] = np.cumsum(widths)
    return firsts


def _feed_forward(layer: DecoderLayer) -> FeedForward:
    assert isinstance(layer.feed_forward, FeedForward)
    return layer.feed_forward
