"""Whether the kernels can do all that a layer, and what is before and behind the layers, needs."""

from collections.abc import Sequence
from typing import TypeGuard

import torch

from loraplex.quant.linears.coded import CodedLinear
from loraplex.quant.linears.scaled_input import ScaledInputLinear
from loraplex.quant.linears.scheme import LinearMethod
from loraplex.quant.linears.stored_float import StoredFloatLinear

from ...attention.cpu import CpuAttention
from ...delta_net.cpu import CpuDeltaNet
from ...kernels.activations import CODES
from ...kernels.vector import LANES
from ..decoder import Decoder
from ..kernels import arguments
from ..layers import Attention, DecoderLayer, DeltaNet, FeedForward, Mixer, Norm

Linear = StoredFloatLinear | CodedLinear | ScaledInputLinear


def is_known(method: LinearMethod) -> TypeGuard[Linear]:
    inner = _inner(method)
    return isinstance(inner, StoredFloatLinear) or (isinstance(inner, CodedLinear) and inner.fits_any_linear)


def ends_fit(decoder: Decoder) -> bool:
    """Otherwise Decoder does what is before the layers and behind them."""
    embedding, norm, head = decoder.embedding, decoder.norm, decoder.head
    vectors = [] if norm is None else [norm.weight, norm.bias]
    return (
        embedding.projection is None
        and embedding.segments is None
        and embedding.norm is None
        and head is not None
        and head.projection is None
        and is_known(head.method)
        and _are_floats([embedding.positions, *vectors])
    )


def layer_fits(layer: DecoderLayer, cache: CpuAttention) -> bool:
    norms = [norm for norm in layer_norms(layer) if norm is not None]
    return (
        (_attention_fits(layer.mixer, cache) if isinstance(layer.mixer, Attention) else _recurrence_fits(layer.mixer))
        and isinstance(layer.feed_forward, FeedForward)
        and layer.feed_forward.activation in CODES
        and layer.token_input is None
        and layer.scale is None
        and (len(layer.norms()), len(layer.linears())) == (len(norms), arguments.GROUPS)
        and _are_floats([vector for norm in norms for vector in (norm.weight, norm.bias)])
        and all(linear.method.in_features % LANES == 0 for linear in layer.linears())
    )


def layer_norms(layer: DecoderLayer) -> tuple[Norm | None, ...]:
    """In the order of the kernels."""
    return layer.mixer_norm, layer.feed_forward_norm, layer.mixer_output_norm, layer.feed_forward_output_norm


def _attention_fits(mixer: Attention, cache: CpuAttention) -> bool:
    rotary = mixer.rotary
    norms = [norm for norm in (rotary.query_norm, rotary.key_norm) if norm is not None]
    return (
        cache.rotates_in_kernel(rotary)
        and cache.layers[mixer.place].has_keys
        and mixer.sinks is None
        and mixer.gated_heads in (0, cache.num_heads)
        and not mixer.keys_that_are_values
        and len(norms) != 1
        and _are_floats(norms)
    )


def _recurrence_fits(mixer: Mixer) -> bool:
    return isinstance(mixer, DeltaNet) and isinstance(mixer.states, CpuDeltaNet) and mixer.states.has_kernels


def _inner(method: LinearMethod) -> LinearMethod:
    return method.method if isinstance(method, ScaledInputLinear) else method


def _are_floats(tensors: Sequence[torch.Tensor | None]) -> bool:
    return all(tensor is None or (tensor.dtype == torch.float32 and tensor.is_contiguous()) for tensor in tensors)
