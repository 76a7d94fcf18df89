"""FusedDecoder: a decoder on the CPU as one compiled call, for what the kernels can do without Python.

The same bits as Decoder.forward layer after layer; a decoder that does not fit keeps to that.
"""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, TypeGuard

import numpy as np
import torch

from loraplex.lora.apply.apply import kernel_arrays
from loraplex.lora.apply.batch import LoraBatch, PageTable
from loraplex.lora.apply.vocabulary import Embedded, adapt_logits, embed
from loraplex.quant.kernels.any_linear import KERNEL
from loraplex.quant.linears.coded import CodedLinear
from loraplex.quant.linears.scaled_input import ScaledInputLinear
from loraplex.quant.linears.scheme import LinearMethod
from loraplex.quant.linears.stored_float import StoredFloatLinear

from ..attention.backend import AttentionBackend, Rotary
from ..attention.cpu import CpuAttention
from ..batch import Batch
from ..kernels.arrays import as_array
from ..kernels.vector import LANES
from .decoder import Decoder
from .kernels import forward as kernels
from .layers import Attention, DecoderLayer
from .linear import GROUPS

Linear = StoredFloatLinear | CodedLinear | ScaledInputLinear

NORMS: Final = ("input_layernorm", "post_attention_layernorm", "norm", "q_norm", "k_norm")
"""As kernels.Model has them."""
ALIGNMENT: Final = 16
"""Floats of a cache line."""


@dataclass(slots=True)
class FusedDecoder:
    cache: CpuAttention
    embedding: torch.Tensor
    model: kernels.Model
    sizes: kernels.Sizes
    linears: list[Linear]
    """One of each kernel and size, for the scratch they need."""
    no_lora: kernels.Lora
    no_embeddings: Embedded
    owners: tuple[object, ...]
    """Hold the weights that the model's addresses point to."""
    rooms: kernels.Workspace | None = None

    def forward(self, batch: Batch, cache: AttentionBackend) -> torch.Tensor:
        """As Decoder.forward."""
        logits, hidden = self._base_logits(batch, cache)
        return adapt_logits(logits, hidden, batch.sample_rows, batch.lora)

    def ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the last step, as of Decoder.compute, good until the next one."""
        assert self.rooms is not None, "no step yet"
        return torch.from_numpy(self.rooms.x), torch.from_numpy(self.rooms.residual)

    def _base_logits(self, batch: Batch, cache: AttentionBackend) -> tuple[torch.Tensor, torch.Tensor]:
        """The base's logits [R, V] and what they are computed of [R, C], good until the next step."""
        assert cache is self.cache
        embedded = None if batch.lora is None else embed(batch.token_ids, self.embedding, batch.lora)
        logits = torch.empty(len(batch.sample_rows), len(self.model.embedding))
        rooms = self._rooms(len(batch.token_ids), len(logits))
        token_ids, own = batch.token_ids, self.no_embeddings
        if embedded is not None:
            token_ids, own = token_ids.clamp(max=len(self.model.embedding) - 1), embedded
        kernels.forward(
            token_ids.numpy(),
            own.tokens.numpy(),
            own.values.numpy(),
            batch.sample_rows.numpy(),
            logits.numpy(),
            rooms,
            self._model(batch.lora),
            self.sizes,
            self.cache.arguments(batch),
            self.no_lora if batch.lora is None else kernels.Lora(*kernel_arrays(batch.lora)),
        )
        return logits, torch.from_numpy(rooms.sampled_normed)

    def _model(self, lora: LoraBatch | None) -> kernels.Model:
        """With the rows of the page table, once there is an adapter. Those of norms of heads only where heads have any:
        else the kernel looks at none."""
        if lora is not None and not len(self.model.kinds):
            kinds = [lora.table.row(kind) for group in GROUPS for kind in group]
            norms = NORMS if self.sizes.norm_size else NORMS[: kernels.LAST_NORM + 1]
            rows = np.array(kinds), np.array([lora.table.row(norm) for norm in norms])
            self.model = self.model._replace(kinds=rows[0], norm_kinds=rows[1])
        return self.model

    def _rooms(self, tokens: int, rows: int) -> kernels.Workspace:
        """Those of the last step again if it was as long."""
        if self.rooms is None or (len(self.rooms.x), len(self.rooms.sampled_x)) != (tokens, rows):
            self.rooms = kernels.Workspace(*_cut(_room_shapes(tokens, rows, self.sizes, self.linears)))
        return self.rooms


def fuse(decoder: Decoder, cache: AttentionBackend) -> FusedDecoder | None:
    """None where a decoder needs more than the kernels do: another scheme, another device, odd sizes, or what its
    family has beyond Llama's layers."""
    layers, norm = decoder.layers, decoder.norm
    if not isinstance(cache, CpuAttention) or norm is None or decoder.head is None or not _ends_fit(decoder):
        return None
    head = decoder.head.method
    first = layers[0].mixer
    if not isinstance(first, Attention) or not all(_fits(layer, first.rotary, cache) for layer in layers):
        return None
    if any(eps != norm.eps for layer in layers for eps in _all_eps(layer)):
        return None
    embedding = decoder.embedding.table
    table, methods = as_array(embedding), [head, *(linear.method for layer in layers for linear in layer.linears())]
    linears = [method for method in methods if _is_known(method)]
    if len(linears) < len(methods):
        return None
    rotary, feed_forward = first.rotary, layers[0].feed_forward
    assert rotary.cos is not None and rotary.sin is not None
    hidden, intermediate = feed_forward.inputs.method.in_features, feed_forward.output.method.in_features
    norm_size = 0 if rotary.query_norm is None else cache.head_dim
    return FusedDecoder(
        cache=cache,
        embedding=embedding,
        model=kernels.Model(
            table=np.array([_addresses(layer) for layer in layers]),
            embedding=table,
            norm=norm.weight.numpy(),
            head=np.array(linears[0].where()),
            cos=as_array(rotary.cos),
            sin=as_array(rotary.sin),
            eps=np.float32(norm.eps),
            kinds=np.empty(0, np.int64),
            firsts=_firsts(layers[0]),
            norm_kinds=np.empty(0, np.int64),
        ),
        sizes=kernels.Sizes(hidden, cache.num_heads, cache.num_kv_heads, cache.head_dim, intermediate, norm_size),
        linears=list({(linear.where()[KERNEL], linear.in_features): linear for linear in linears}.values()),
        no_lora=_no_lora(embedding.dtype),
        no_embeddings=Embedded(torch.empty(0, dtype=torch.int64), torch.empty(0, hidden)),
        owners=(layers, head),
    )


def _room_shapes(tokens: int, rows: int, sizes: kernels.Sizes, linears: list[Linear]) -> list[tuple[int, ...]]:
    """In the order of Workspace."""
    hidden, heads = (tokens, sizes.hidden), (tokens, sizes.heads, sizes.head_dim)
    return [
        *[hidden] * 3,
        (tokens, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim),
        *[heads] * 2,
        (tokens, 2 * sizes.intermediate),
        (tokens, sizes.intermediate),
        *[(rows, sizes.hidden)] * 3,
        (max(-(-linear.scratch_bytes(max(tokens, rows)) // 4) for linear in linears),),
    ]


def _cut(shapes: list[tuple[int, ...]]) -> list[Any]:
    """Arrays of one allocation, each at the start of a cache line."""
    sizes = [math.prod(shape) for shape in shapes]
    starts = list(accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0))
    memory = torch.empty(starts[-1]).numpy()
    pieces = zip(starts, sizes, shapes, strict=False)
    return [memory[start : start + size].reshape(shape) for start, size, shape in pieces]


def _is_known(method: LinearMethod) -> TypeGuard[Linear]:
    inner = _inner(method)
    return isinstance(inner, StoredFloatLinear) or (isinstance(inner, CodedLinear) and inner.fits_any_linear)


def _attention_fits(mixer: Attention, rotary: Rotary, cache: CpuAttention) -> bool:
    attention, own = cache.layers[mixer.place], mixer.rotary
    return (
        cache.rotates_in_kernel(own)
        and own.is_plain(cache.head_dim)
        and own.cos is rotary.cos
        and own.sin is rotary.sin
        and not attention.sinks
        and attention.keys_of is None
        and not mixer.gated_heads
        and not mixer.keys_that_are_values
        and not mixer.keys_that_are_values
    )


def _all_eps(layer: DecoderLayer) -> list[float]:
    """Of the norms of a layer and of its heads: the kernels take one for all."""
    assert isinstance(layer.mixer, Attention)
    rotary = layer.mixer.rotary
    heads = [] if rotary.query_norm is None and rotary.key_norm is None else [rotary.eps]
    return [*(norm.eps for norm in layer.norms()), *heads]


def _inner(method: LinearMethod) -> LinearMethod:
    return method.method if isinstance(method, ScaledInputLinear) else method


def _ends_fit(decoder: Decoder) -> bool:
    embedding, norm = decoder.embedding, decoder.norm
    plain = embedding.scale == 1.0 and embedding.positions is None and embedding.projection is None
    head, is_known = decoder.head, norm is not None and norm.bias is None and norm.kind == NORMS[2]
    return plain and is_known and head is not None and head.is_plain and decoder.token_inputs is None


def _fits(layer: DecoderLayer, rotary: Rotary, cache: CpuAttention) -> bool:
    """rotary: that of another layer, whose tables must be this one's."""
    norms, feed_forward = (layer.mixer_norm, layer.feed_forward_norm), layer.feed_forward
    return (
        isinstance(layer.mixer, Attention)
        and _attention_fits(layer.mixer, rotary, cache)
        and layer.mixer_output_norm is None
        and layer.feed_forward_output_norm is None
        and not layer.norms_follow_sum
        and layer.residual_scale == 1.0
        and layer.token_input is None
        and layer.scale is None
        and layer.token_input is None
        and layer.scale is None
        and (feed_forward.activation, feed_forward.is_gated) == ("silu", True)
        and all(norm is not None and norm.bias is None and norm.weight.dtype == torch.float32 for norm in norms)
        and [norm.kind for norm in layer.norms()] == list(NORMS[:2])
        and [linear.kinds for linear in layer.linears()] == list(GROUPS)
        and all(linear.method.in_features % LANES == 0 for linear in layer.linears())
    )


def _addresses(layer: DecoderLayer) -> list[int]:
    assert isinstance(layer.mixer, Attention) and layer.mixer_norm is not None and layer.feed_forward_norm is not None
    rotary = layer.mixer.rotary
    norms = (layer.mixer_norm.weight, layer.feed_forward_norm.weight, rotary.query_norm, rotary.key_norm)
    linears = [linear.method for linear in layer.linears()]
    return [
        *(0 if weight is None else weight.data_ptr() for weight in norms),
        *(number for linear in linears if _is_known(linear) for number in linear.where()),
    ]


def _firsts(layer: DecoderLayer) -> Any:
    firsts = np.zeros((4, 4), np.int64)
    for row, linear in zip(firsts, layer.linears(), strict=True):
        ends = np.cumsum(linear.method.out_features)
        row[1 : len(ends) + 1] = ends
    return firsts


def _no_lora(dtype: torch.dtype) -> kernels.Lora:
    """Of the types that a batch with adapters has, so that both are one compiled function."""
    table = PageTable(
        arena=torch.empty(0, dtype=dtype),
        offset=torch.zeros(1, 1, 1, dtype=torch.int64),
        rank=torch.zeros(1, 1, 1, dtype=torch.int32),
        scaling=torch.zeros(1, 1, 1),
        shapes={},
    )
    none = torch.empty(0, dtype=torch.int32)
    scales = torch.empty(0)
    return kernels.Lora(*kernel_arrays(LoraBatch(table, none.view(0, 1), scales, none, scales, none, none, none)))
