"""FusedLayers: a decoder's layers on the CPU as one compiled call, for what the kernels can do without Python.

The same bits as DecoderLayer.apply, layer after layer; a decoder that does not fit keeps to those.
"""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch

from loraplex.lora.apply import kernel_arrays
from loraplex.lora.batch import KINDS, LoraBatch, PageTable
from loraplex.quant.kernels.panel_linear import scratch_size
from loraplex.quant.stored_float import StoredFloatLinear

from ..attention.backend import AttentionBackend
from ..attention.cpu import CpuAttention
from ..batch import Batch
from ..kernels.vector import LANES
from .kernels import layers as kernels
from .layers import DecoderLayer, Norm
from .linear import LoraLinear

ALIGNMENT: Final = 16
"""Floats of a cache line."""


@dataclass(slots=True)
class FusedLayers:
    cache: CpuAttention
    model: kernels.Model
    sizes: kernels.Sizes
    most_inputs: int
    no_lora: kernels.Lora
    layers: list[DecoderLayer]
    """Hold the weights that the model's table points to."""
    rooms: list[Any] | None = None

    def apply(self, x: torch.Tensor, residual: torch.Tensor, batch: Batch, cache: AttentionBackend) -> torch.Tensor:
        """x and residual [T, C] float32, contiguous, both overwritten; returns x after the last layer."""
        assert cache is self.cache
        rooms = self._rooms(len(x))
        lora = self.no_lora if batch.lora is None else kernels.Lora(*kernel_arrays(batch.lora))
        kernels.forward_layers(
            x.numpy(), residual.numpy(), *rooms, self.model, self.sizes, self.cache.arguments(batch), lora
        )
        return x

    def _rooms(self, tokens: int) -> list[Any]:
        """The arrays that forward_layers works in; those of the last step again if it was as long."""
        if self.rooms is None or len(self.rooms[0]) != tokens:
            self.rooms = _cut(_room_shapes(tokens, self.sizes, self.most_inputs))
        return self.rooms


def fuse(layers: list[DecoderLayer], cache: AttentionBackend, stored_dtype: torch.dtype) -> FusedLayers | None:
    """None where a layer needs more than the kernels do: another scheme, another device, odd sizes."""
    if not isinstance(cache, CpuAttention) or not all(_fits(layer, cache) for layer in layers):
        return None
    rotary, mlp = layers[0].attention.rotary, layers[0].mlp
    hidden, intermediate = mlp.gate_up.method.in_features, mlp.down.method.in_features
    norm_size = 0 if rotary.query_norm is None else cache.head_dim
    panels = _method(mlp.down).panels
    return FusedLayers(
        cache=cache,
        model=kernels.Model(
            table=np.array([_addresses(layer) for layer in layers]),
            like=np.empty(1, panels.dtype),
            cos=rotary.cos.numpy(),
            sin=rotary.sin.numpy(),
            eps=np.float32(layers[0].input_norm.eps),
            kinds=np.arange(len(KINDS)),
            firsts=_firsts(layers[0]),
        ),
        sizes=kernels.Sizes(hidden, cache.num_heads, cache.num_kv_heads, cache.head_dim, intermediate, norm_size),
        most_inputs=max(hidden, intermediate, cache.num_heads * cache.head_dim),
        no_lora=_no_lora(stored_dtype),
        layers=layers,
    )


def _room_shapes(tokens: int, sizes: kernels.Sizes, most_inputs: int) -> list[tuple[int, ...]]:
    return [
        (tokens, sizes.hidden),
        (tokens, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim),
        (tokens, sizes.heads, sizes.head_dim),
        (tokens, sizes.heads, sizes.head_dim),
        (tokens, 2 * sizes.intermediate),
        (tokens, sizes.intermediate),
        (scratch_size(tokens, most_inputs),),
    ]


def _cut(shapes: list[tuple[int, ...]]) -> list[Any]:
    """Arrays of one allocation, each at the start of a cache line."""
    sizes = [math.prod(shape) for shape in shapes]
    starts = list(accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0))
    memory = torch.empty(starts[-1]).numpy()
    pieces = zip(starts, sizes, shapes, strict=False)
    return [memory[start : start + size].reshape(shape) for start, size, shape in pieces]


def _linears(layer: DecoderLayer) -> tuple[LoraLinear, ...]:
    """In the order of GROUPS."""
    return layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down


def _method(linear: LoraLinear) -> StoredFloatLinear:
    assert isinstance(linear.method, StoredFloatLinear)
    return linear.method


def _fits(layer: DecoderLayer, cache: CpuAttention) -> bool:
    norms: list[Norm] = [layer.input_norm, layer.mlp_norm]
    return (
        cache.rotates_in_kernel
        and all(isinstance(linear.method, StoredFloatLinear) for linear in _linears(layer))
        and all(norm.weight.dtype == torch.float32 for norm in norms)
        and all(linear.method.in_features % LANES == 0 for linear in _linears(layer))
    )


def _addresses(layer: DecoderLayer) -> list[int]:
    norms = (
        layer.input_norm.weight,
        layer.mlp_norm.weight,
        layer.attention.rotary.query_norm,
        layer.attention.rotary.key_norm,
    )
    methods = [_method(linear) for linear in _linears(layer)]
    return [
        *(0 if weight is None else weight.data_ptr() for weight in norms),
        *(method.panels.ctypes.data for method in methods),
        *(method.bias.ctypes.data for method in methods),
    ]


def _firsts(layer: DecoderLayer) -> Any:
    firsts = np.zeros((4, 4), np.int64)
    for row, linear in zip(firsts, _linears(layer), strict=True):
        ends = np.cumsum(linear.method.out_features)
        row[1 : len(ends) + 1] = ends
    return firsts


def _no_lora(dtype: torch.dtype) -> kernels.Lora:
    """Of the types that a batch with adapters has, so that both are one compiled function."""
    table = PageTable(
        arena=torch.empty(0, dtype=dtype),
        offset=torch.zeros(1, len(KINDS), 1, dtype=torch.int64),
        rank=torch.zeros(1, len(KINDS), 1, dtype=torch.int32),
        scaling=torch.zeros(1, len(KINDS), 1),
        shapes={},
    )
    none = torch.empty(0, dtype=torch.int32)
    return kernels.Lora(*kernel_arrays(LoraBatch(table, none, torch.empty(0), none, none, none)))
