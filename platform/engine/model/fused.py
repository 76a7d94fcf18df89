"""FusedDecoder: a decoder on the CPU as one compiled call, for what the kernels can do without Python.

The same bits as Decoder.forward layer after layer; a decoder that does not fit keeps to that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, TypeGuard

import numpy as np
import torch

from loraplex.lora.apply.apply import kernel_arrays
from loraplex.lora.apply.batch import LoraBatch, PageTable
from loraplex.lora.apply.vocabulary import Embedded, adapt_logits, embed
from loraplex.quant.kernels.any_linear import KERNEL, WIDTH
from loraplex.quant.linears.coded import CodedLinear
from loraplex.quant.linears.scaled_input import ScaledInputLinear
from loraplex.quant.linears.scheme import LinearMethod
from loraplex.quant.linears.stored_float import StoredFloatLinear

from ..attention.backend import AttentionBackend
from ..attention.cpu import CpuAttention
from ..batch import Batch
from ..kernels.activations import CODES, activation_address
from ..kernels.arrays import as_array
from ..kernels.vector import LANES
from .decoder import Decoder
from .kernels import arguments
from .kernels.forward import forward
from .layers import Attention, DecoderLayer, FeedForward, Norm

Linear = StoredFloatLinear | CodedLinear | ScaledInputLinear

ALIGNMENT: Final = 16
"""Floats of a cache line."""


@dataclass(frozen=True, slots=True)
class Modules:
    """A layer's modules as adapters know them: all layers have the same."""

    groups: tuple[tuple[str, ...], ...]
    """The kinds of each group of linears."""
    widths: tuple[tuple[int, ...], ...]
    norms: tuple[str, ...]
    """In the order of the kernels; empty: there is none."""
    head_norms: tuple[int, ...]
    """How long the norms of queries and of keys are; 0: there is none."""


@dataclass(slots=True)
class FusedDecoder:
    decoder: Decoder
    cache: CpuAttention
    model: arguments.Model
    sizes: arguments.Sizes
    linears: list[Linear]
    """One of each kernel and size, for the scratch they need."""
    modules: Modules
    no_lora: arguments.Lora
    no_embeddings: Embedded
    has_ends: bool
    """Whether the compiled call also does what is before the layers and behind them."""
    rooms: arguments.Workspace | None = None

    def forward(self, batch: Batch, cache: AttentionBackend) -> torch.Tensor:
        """As Decoder.forward."""
        assert cache is self.cache
        return self._whole(batch) if self.has_ends else self._layers(batch)

    def ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the last step, as of Decoder.compute, good until the next one."""
        assert self.rooms is not None, "no step yet"
        return torch.from_numpy(self.rooms.x), torch.from_numpy(self.rooms.residual)

    def _whole(self, batch: Batch) -> torch.Tensor:
        head, table, token_ids = self.decoder.head, self.decoder.embedding.table, batch.token_ids
        assert head is not None
        embedded = None if batch.lora is None else embed(token_ids, table, batch.lora)
        if embedded is not None:
            token_ids = token_ids.clamp(max=len(table) - 1)
        logits, rooms = self._run(batch, token_ids, embedded or self.no_embeddings, batch.sample_rows)
        hidden = torch.from_numpy(rooms.sampled_normed)
        return head.finish(adapt_logits(logits, hidden, batch.sample_rows, batch.lora))

    def _layers(self, batch: Batch) -> torch.Tensor:
        """The ends by Decoder: token 0 stands for all tokens, which have embeddings of their own."""
        x = self.decoder.begin(batch)
        tokens = torch.arange(len(x))
        self._run(batch, torch.zeros_like(tokens), Embedded(tokens, x.contiguous()), tokens[:0])
        return self.decoder.end(*self.ends(), batch)

    def _run(
        self, batch: Batch, token_ids: torch.Tensor, embedded: Embedded, rows: torch.Tensor
    ) -> tuple[torch.Tensor, arguments.Workspace]:
        """The base's logits [R, V] of the tokens `rows`, and where the step worked, good until the next one."""
        logits, rooms = torch.empty(len(rows), len(self.model.embedding)), self._rooms(len(token_ids), len(rows))
        forward(
            token_ids.numpy(),
            embedded.tokens.numpy(),
            embedded.values.numpy(),
            rows.numpy(),
            logits.numpy(),
            rooms,
            self._model(batch.lora),
            self.sizes,
            self.cache.arguments(batch),
            self.no_lora if batch.lora is None else arguments.Lora(*kernel_arrays(batch.lora)),
        )
        return logits, rooms

    def _model(self, lora: LoraBatch | None) -> arguments.Model:
        """With the rows of the page table, once there is an adapter."""
        if lora is not None and not len(self.model.kinds):
            kinds = [lora.table.row(kind) for group in self.modules.groups for kind in group]
            last = self.decoder.norm.kind if self.has_ends and self.decoder.norm is not None else ""
            norms = [*self.modules.norms[: arguments.NORMS], last, *self.modules.norms[arguments.NORMS :]]
            rows = [lora.table.row(norm) if norm else -1 for norm in norms]
            self.model = self.model._replace(kinds=np.array(kinds), norm_kinds=np.array(rows))
        return self.model

    def _rooms(self, tokens: int, rows: int) -> arguments.Workspace:
        """Those of the last step again if it was as long."""
        if self.rooms is None or (len(self.rooms.x), len(self.rooms.sampled_x)) != (tokens, rows):
            self.rooms = arguments.Workspace(*_cut(_room_shapes(tokens, rows, self.sizes, self.linears)))
        return self.rooms


def fuse(decoder: Decoder, cache: AttentionBackend) -> FusedDecoder | None:
    """None where the layers need more than the kernels do: another scheme or device, sizes that are no whole vectors,
    an activation that `activations` lacks, other modules or heads than the first layer has, experts, recurrence, sinks,
    gates of what was attended, keys of other layers or keys that are values, inputs of their own or a scale of the
    stream."""
    is_float = decoder.embedding.dtype == torch.float32
    if not isinstance(cache, CpuAttention) or not is_float or decoder.token_inputs is not None:
        return None
    layers, first = decoder.layers, decoder.layers[0]
    if not all(_fits(layer, cache) for layer in layers) or any(_modules(layer) != _modules(first) for layer in layers):
        return None
    has_ends = _ends_fit(decoder)
    ends = [decoder.head.method] if has_ends and decoder.head is not None else []
    methods = [*(linear.method for layer in layers for linear in layer.linears()), *ends]
    linears = [method for method in methods if _is_known(method)]
    if len(linears) < len(methods):
        return None
    modules, feed_forward, hidden = _modules(first), _feed_forward(first), first.mixer.inputs.method.in_features
    return FusedDecoder(
        decoder=decoder,
        cache=cache,
        model=_model(decoder, modules, linears[-1] if has_ends else None),
        sizes=arguments.Sizes(
            hidden,
            cache.num_heads,
            cache.num_kv_heads,
            cache.head_dim,
            feed_forward.output.method.in_features,
            sum(feed_forward.inputs.method.out_features),
            *modules.head_norms,
        ),
        linears=list({(linear.where()[KERNEL], linear.in_features): linear for linear in linears}.values()),
        modules=modules,
        no_lora=_no_lora(decoder.embedding.table.dtype),
        no_embeddings=Embedded(torch.empty(0, dtype=torch.int64), torch.empty(0, hidden)),
        has_ends=has_ends,
    )


def _model(decoder: Decoder, modules: Modules, head: Linear | None) -> arguments.Model:
    """head: None where the ends are not compiled: one row of zeros is the embedding, and nothing else is there."""
    layers, embedding, norm = decoder.layers, decoder.embedding, None if head is None else decoder.norm
    hidden, nothing = layers[0].mixer.inputs.method.in_features, np.empty(0, np.float32)
    positions = None if head is None else embedding.positions
    feed_forwards = [_feed_forward(layer) for layer in layers]
    is_simple = all((it.activation, it.is_gated) == ("silu", True) for it in feed_forwards)
    return arguments.Model(
        table=np.array([_row(layer) for layer in layers]),
        numbers=np.array([_numbers(layer) for layer in layers], np.float32),
        embedding=as_array(embedding.table if head is not None else embedding.table.new_zeros(1, hidden)),
        embedding_scale=np.float32(1 if head is None else embedding.scale),
        positions=nothing.reshape(0, hidden) if positions is None else positions.numpy(),
        norm=nothing if norm is None else norm.weight.numpy(),
        norm_bias=nothing if norm is None or norm.bias is None else norm.bias.numpy(),
        eps=np.float32(0 if norm is None else norm.eps),
        head=np.array([0] * WIDTH if head is None else head.where()),
        activate=0 if is_simple else activation_address(),
        groups=np.cumsum([0, *(len(group) for group in modules.groups)]),
        kinds=np.empty(0, np.int64),
        firsts=_firsts(modules),
        norm_kinds=np.empty(0, np.int64),
    )


def _room_shapes(tokens: int, rows: int, sizes: arguments.Sizes, linears: list[Linear]) -> list[tuple[int, ...]]:
    """In the order of Workspace."""
    hidden, heads = (tokens, sizes.hidden), (tokens, sizes.heads, sizes.head_dim)
    return [
        *[hidden] * 3,
        (tokens, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim),
        *[heads] * 2,
        (tokens, sizes.inner),
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


def _attention_fits(mixer: Attention, cache: CpuAttention) -> bool:
    rotary = mixer.rotary
    norms = [norm for norm in (rotary.query_norm, rotary.key_norm) if norm is not None]
    return (
        cache.rotates_in_kernel(rotary)
        and cache.layers[mixer.place].has_keys
        and mixer.sinks is None
        and not mixer.gated_heads
        and not mixer.keys_that_are_values
        and len(norms) != 1
        and _are_floats(norms)
    )


def _inner(method: LinearMethod) -> LinearMethod:
    return method.method if isinstance(method, ScaledInputLinear) else method


def _ends_fit(decoder: Decoder) -> bool:
    """Otherwise Decoder does what is before the layers and behind them."""
    embedding, norm, head = decoder.embedding, decoder.norm, decoder.head
    vectors = [] if norm is None else [norm.weight, norm.bias]
    return (
        embedding.projection is None
        and embedding.segments is None
        and embedding.norm is None
        and head is not None
        and head.projection is None
        and _is_known(head.method)
        and _are_floats([embedding.positions, *vectors])
    )


def _fits(layer: DecoderLayer, cache: CpuAttention) -> bool:
    norms = [norm for norm in _norms(layer) if norm is not None]
    return (
        isinstance(layer.mixer, Attention)
        and _attention_fits(layer.mixer, cache)
        and isinstance(layer.feed_forward, FeedForward)
        and layer.feed_forward.activation in CODES
        and layer.token_input is None
        and layer.scale is None
        and (len(layer.norms()), len(layer.linears())) == (len(norms), arguments.GROUPS)
        and _are_floats([vector for norm in norms for vector in (norm.weight, norm.bias)])
        and all(linear.method.in_features % LANES == 0 for linear in layer.linears())
    )


def _are_floats(tensors: Sequence[torch.Tensor | None]) -> bool:
    return all(tensor is None or (tensor.dtype == torch.float32 and tensor.is_contiguous()) for tensor in tensors)


def _norms(layer: DecoderLayer) -> tuple[Norm | None, ...]:
    """In the order of the kernels."""
    return layer.mixer_norm, layer.feed_forward_norm, layer.mixer_output_norm, layer.feed_forward_output_norm


def _feed_forward(layer: DecoderLayer) -> FeedForward:
    assert isinstance(layer.feed_forward, FeedForward)
    return layer.feed_forward


def _modules(layer: DecoderLayer) -> Modules:
    assert isinstance(layer.mixer, Attention)
    rotary, linears = layer.mixer.rotary, layer.linears()
    head_norms = rotary.query_norm, rotary.key_norm
    names = zip(rotary.norm_kinds, head_norms, strict=True)
    return Modules(
        groups=tuple(linear.kinds for linear in linears),
        widths=tuple(linear.method.out_features for linear in linears),
        norms=(
            *("" if norm is None else norm.kind for norm in _norms(layer)),
            *("" if norm is None else kind for kind, norm in names),
        ),
        head_norms=tuple(0 if norm is None else len(norm) for norm in head_norms),
    )


def _row(layer: DecoderLayer) -> list[int]:
    """Of the kernels' table."""
    assert isinstance(layer.mixer, Attention)
    rotary, feed_forward = layer.mixer.rotary, _feed_forward(layer)
    norms = [(None, None) if norm is None else (norm.weight, norm.bias) for norm in _norms(layer)]
    heads = rotary.query_norm, rotary.key_norm, rotary.cos, rotary.sin, rotary.query_scale
    vectors = [*(weight for weight, _ in norms), *(bias for _, bias in norms), *heads]
    linears = [linear.method for linear in layer.linears()]
    row = [
        *(0 if vector is None else vector.data_ptr() for vector in vectors),
        *((1, 0) if rotary.cos is None else rotary.cos.shape),
        0 if rotary.query_scale is None else len(rotary.query_scale),
        *(rotary.interleaved, rotary.value_norm),
        CODES[feed_forward.activation],
        *(feed_forward.is_gated, layer.norms_follow_sum),
        *(number for linear in linears if _is_known(linear) for number in linear.where()),
    ]
    assert len(row) == arguments.COLUMNS
    return row


def _numbers(layer: DecoderLayer) -> list[float]:
    assert isinstance(layer.mixer, Attention)
    eps = [0.0 if norm is None else norm.eps for norm in _norms(layer)]
    return [*eps, layer.mixer.rotary.eps, layer.residual_scale]


def _firsts(modules: Modules) -> Any:
    firsts = np.zeros((arguments.GROUPS, max(map(len, modules.widths)) + 1), np.int64)
    for row, widths in zip(firsts, modules.widths, strict=True):
        row[1 : len(widths) + 1] = np.cumsum(widths)
    return firsts


def _no_lora(dtype: torch.dtype) -> arguments.Lora:
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
    return arguments.Lora(*kernel_arrays(LoraBatch(table, none.view(0, 1), scales, none, scales, none, none, none)))
