"""CudaAttention: the paged KV cache on a CUDA device and its triton kernels.

    keys, values  [L, N, G, block size, D]    what one KV head has in a block is one run of memory, so that a program
                                              reads whole rows, 16 bytes a thread
    scales        [L, N, G, block size, 2]    bfloat16, of a key and of its value: one word, the least that is copied
                                              to a multiprocessor ahead of its use

L are the layers that store keys. Heads of any size are padded to a power of two in registers alone.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import torch

from loraplex.lora.apply.batch import LoraBatch
from loraplex.quant.kernels.cuda.card import find_card

from ..batch import Batch
from ..kv_cache.block_pool import PADDING_BLOCK
from .backend import AttentionBackend, CacheShape, Rotary
from .kernels.cuda.launch import (
    FORMATS,
    Head,
    LayerCache,
    OwnNorms,
    Partials,
    Turn,
    attend_paged,
    plan_attend,
    write_heads,
)
from .kernels.cuda.tiles import MOST_SPLITS, PARTIAL_TOKENS, is_uneven, partial_rows
from .layer import owner
from .mixed import MixedAttention

MOST_HEAD_DIM: Final = 512


class CudaBackend(AttentionBackend, Protocol):
    """What a runner of captured steps asks for, besides."""

    @property
    def clips(self) -> bool:
        """Whether numbers can be beyond the scales, and are counted in Batch.clipped."""

    def cuts(self, tokens: int, sequences: int, blocks: int, uneven: bool, mixed: bool) -> int:
        """What keys are cut by in steps of these shapes with tables of `blocks` blocks: a captured launch's number."""

    def is_uneven(self, lengths: np.ndarray) -> bool:
        """Batch.uneven of a decode with contexts of these lengths."""


def cuda_attention(shape: CacheShape, *, max_tokens: int, device: torch.device | str = "cuda") -> CudaBackend:
    """max_tokens: of one step."""
    groups = [CudaAttention(shape, only, max_tokens=max_tokens, device=device) for only in shape.by_geometry()]
    return groups[0] if len(groups) == 1 else MixedCudaAttention(groups)


class CudaAttention:
    """CudaBackend of layers whose heads are alike. No call waits for the device or reads from it.

    A captured step replays right when the contents of a batch's tensors change: launches follow from shapes, `uneven`
    and `mixed` alone. A row that is padding has slot -1 and position 0 and belongs to no sequence, or to one with a
    context of 0. Partial results share one buffer, so all calls belong to one stream; what is returned comes from
    torch's caching allocator.
    """

    takes_own_norms = True

    def __init__(
        self,
        shape: CacheShape,
        only: Sequence[int] | None = None,
        *,
        max_tokens: int,
        device: torch.device | str = "cuda",
    ) -> None:
        """only: the layers that it serves, None: all; they keep their numbers. max_tokens: of one step."""
        self.layers, self.served = shape.layers, range(len(shape.layers)) if only is None else only
        ((self.num_heads, self.num_kv_heads, head_dim),) = {self.layers[layer].geometry for layer in self.served}
        if head_dim % 2 or head_dim > MOST_HEAD_DIM:
            raise ValueError(f"head_dim is {head_dim}; on CUDA it must be even and at most {MOST_HEAD_DIM}")
        self.head_dim, dtype = head_dim, shape.cache_dtype
        owners = [layer for layer in self.served if self.layers[layer].has_keys]
        blocks = (len(owners), shape.num_blocks, self.num_kv_heads, shape.block_size)
        self._key, self._value = (torch.zeros(*blocks, head_dim, dtype=dtype, device=device) for _ in range(2))
        self.clips = dtype in FORMATS and shape.static_scales is not None
        scaled = shape.num_blocks if dtype in FORMATS and not self.clips else 0
        self._scales = torch.zeros(len(owners), scaled, *blocks[2:], 2, dtype=torch.bfloat16, device=device)
        static = torch.empty(len(owners), 0)
        if self.clips and shape.static_scales is not None:
            static = torch.stack([shape.static_scales[layer] for layer in owners])
        static = static.to(device).contiguous()
        caches = [LayerCache(*parts) for parts in zip(self._key, self._value, self._scales, static, strict=True)]
        self._caches = {layer: caches[owners.index(owner(self.layers, layer))] for layer in self.served}
        self._heads = [Head(float(layer.scale), float(layer.soft_cap or 0), layer.window or 0) for layer in self.layers]
        rows = partial_rows(max_tokens), self.num_heads
        sums, states = (torch.empty(*rows, width, device=device) for width in (head_dim, 2))
        arrivals = torch.zeros(PARTIAL_TOKENS, self.num_kv_heads, dtype=torch.int32, device=device)
        self._partials = Partials(sums, states, arrivals)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, batch: Batch) -> None:
        self._write(layer, key[:, :0], torch.cat((key, value), dim=1), Turn(), batch)

    def rotate_and_write(self, layer: int, qkv: torch.Tensor, rotary: Rotary, batch: Batch) -> torch.Tensor:
        heads = qkv.view(len(qkv), -1, self.head_dim)
        query = torch.empty(len(qkv), self.num_heads, self.head_dim, dtype=qkv.dtype, device=qkv.device)
        turn = Turn(
            rotary.cos, rotary.sin, rotary.query_norm, rotary.key_norm, rotary.eps, rotary.interleaved,
            rotary.value_norm, rotary.query_scale,
        )  # fmt: skip
        self._write(layer, query, heads, turn, batch, self._own_norms(layer, rotary, batch.lora))
        return query

    def _own_norms(self, layer: int, rotary: Rotary, lora: LoraBatch | None) -> OwnNorms | None:
        if lora is None or rotary.query_norm is None or not lora.changed.intersection(rotary.norm_kinds):
            return None
        table, (query, key), number = lora.table, rotary.norm_kinds, self.layers[layer].number
        rows = table.row(query), table.row(key or query)  # without keys of its own, no program looks for theirs
        ordinal = table.ordinal(query, layer if number is None else number)
        return OwnNorms(lora.arrays.slots, table.floats, table.vectors, ordinal, *rows)

    def _write(
        self, layer: int, query: torch.Tensor, heads: torch.Tensor, turn: Turn, batch: Batch,
        own: OwnNorms | None = None,
    ) -> None:  # fmt: skip
        if self.clips and batch.clipped is None:
            batch.clipped = torch.zeros(len(self.layers), len(heads), dtype=torch.int64, device=heads.device)
        clipped = None if batch.clipped is None else batch.clipped[layer]
        write_heads(query, heads, self._caches[layer], turn, batch.positions, batch.slot_mapping, clipped, own)

    def attend(self, layer: int, query: torch.Tensor, batch: Batch, sinks: torch.Tensor | None = None) -> torch.Tensor:
        assert (sinks is not None) == self.layers[layer].sinks
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        step = (batch.block_tables, batch.query_starts, batch.context_lengths, batch.uneven)
        if len(query):
            cache, head = self._caches[layer], self._heads[layer]
            attend_paged(output, query, cache, head, self._partials, *step, sinks, batch.mixed)
        return output

    def cuts(self, tokens: int, sequences: int, blocks: int, uneven: bool, mixed: bool) -> int:
        layer = self._caches[self.served[0]]
        return plan_attend(layer, tokens, sequences, self.num_heads, blocks, uneven, mixed).cuts

    def is_uneven(self, lengths: np.ndarray) -> bool:
        return is_uneven(int(lengths.max()), int(lengths.sum()), self.num_kv_heads, find_card(self._key.device))

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        for source, destination in pairs:
            for cache in (self._key, self._value, self._scales):
                if cache.numel():
                    cache[:, destination] = cache[:, source]

    def take_largest_scales(self) -> dict[int, torch.Tensor]:
        """By layer that has keys [2, G] float32 on the host: the largest scale of a key and of a value in each head
        since this was asked last, without the padding block. Only where each has its own; it waits for the device."""
        scales = self._scales[:, PADDING_BLOCK + 1 :].float().amax(dim=(1, 3)).mT.contiguous().cpu()
        self._scales.zero_()
        return dict(zip((layer for layer in self.served if self.layers[layer].has_keys), scales, strict=True))

    def cache_bytes(self) -> int:
        return self._key.nbytes + self._value.nbytes + self._scales.nbytes


class MixedCudaAttention(MixedAttention):
    """CudaBackend of layers whose heads are not all alike."""

    def __init__(self, groups: Sequence[CudaAttention]) -> None:
        super().__init__(groups)
        self._groups = groups
        self.clips = any(group.clips for group in groups)

    def cuts(self, tokens: int, sequences: int, blocks: int, uneven: bool, mixed: bool) -> int:
        """Those of all groups as the digits of one number."""
        number = 0
        for group in self._groups:
            number = number * (MOST_SPLITS + 1) + group.cuts(tokens, sequences, blocks, uneven, mixed)
        return number

    def is_uneven(self, lengths: np.ndarray) -> bool:
        """For any of them; the others cut their keys as well then."""
        return any(group.is_uneven(lengths) for group in self._groups)
