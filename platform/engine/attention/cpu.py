"""CpuAttention: the paged KV cache and its numba kernels."""

import math
from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F

from ..batch import Batch
from ..kernels.arrays import WORTH, as_array
from ..kv_cache.block_pool import PADDING_BLOCK
from .backend import AttentionBackend, CacheShape, Rotary
from .kernels.arguments import Paged
from .kernels.attend import attend, kernel_address
from .kernels.paged import TILE, Cache, Scores, Step, merge
from .kernels.plan import plan
from .kernels.rotate import Heads, rotate, rotate_parallel
from .kernels.write import SERIAL_TOKENS, rotate_and_write, rotate_and_write_parallel, write
from .layer import owner
from .mixed import MixedAttention
from .prepare import prepare

QUERY_ROWS: Final = 96
"""Rows (token, head of a group) of one prefill item."""
MOST_REGISTER_ROWS: Final = 7
PREFILL_REGISTER_ROWS: Final = 6
REGISTERS: Final = 32
"""Vectors: of the sums [rows, columns], a value's columns and a weight."""
NO_WINDOW: Final = 1 << 40
CACHE_LINE: Final = 64
NOTHING: Final = np.empty(0, dtype=np.float32)
NO_ANGLES: Final = np.empty((1, 0), dtype=np.float32)


def cpu_attention(shape: CacheShape) -> AttentionBackend:
    groups = shape.by_geometry()
    return CpuAttention(shape) if len(groups) == 1 else MixedAttention([CpuAttention(shape, only) for only in groups])


class CpuAttention:
    """AttentionBackend for float32 queries, keys and values, stored in any dtype, of layers whose heads are alike. Head
    sizes that are no multiple of 16 are padded with zeros, here and nowhere else."""

    takes_own_norms = False

    def __init__(self, shape: CacheShape, only: Sequence[int] | None = None) -> None:
        """only: the layers that it serves, None: all; they keep their numbers."""
        if shape.block_size % TILE:
            raise ValueError(f"block_size is {shape.block_size}; on a CPU it must be a multiple of {TILE}")
        self.layers, self.served = shape.layers, range(len(shape.layers)) if only is None else only
        dtype, static_scales = shape.cache_dtype, shape.static_scales
        (geometry,) = {self.layers[layer].geometry for layer in self.served}
        self.num_heads, self.num_kv_heads, self.head_dim = geometry
        owners = [layer for layer in self.served if self.layers[layer].has_keys]
        place = {layer: owners.index(owner(self.layers, layer)) for layer in self.served}
        self._places = np.array([place.get(layer, -1) for layer in range(len(self.layers))])
        self._size = -(-self.head_dim // TILE) * TILE
        tiles = (len(owners), shape.num_blocks, self.num_kv_heads, shape.block_size // TILE)
        self._key = _zeros((*tiles, self._size, TILE), dtype)
        self._value = _zeros((*tiles, TILE, self._size), dtype)
        scaled = shape.num_blocks if dtype.itemsize == 1 and static_scales is None else 0
        self._scales = _zeros((len(owners), scaled, *tiles[2:], 2, TILE), torch.bfloat16)
        self._worth, self._is_static = WORTH.get(dtype, 1.0), static_scales is not None
        static = torch.ones(len(owners), 2, self.num_kv_heads)
        if static_scales is not None:
            static = torch.stack([static_scales[layer] for layer in owners]) * self._worth
        assert static.shape == (len(owners), 2, self.num_kv_heads)
        self._arrays = as_array(self._key), as_array(self._value), as_array(self._scales), as_array(static)
        caches = [Cache(*layer) for layer in zip(*self._arrays, strict=True)]
        self._caches = {layer: caches[place[layer]] for layer in self.served}
        self._readers = frozenset(layer for layer in self.served if not self.layers[layer].has_keys)
        self._windows = np.array([NO_WINDOW if layer.window is None else layer.window for layer in self.layers])
        self._score_scales = np.array([layer.scale for layer in self.layers], np.float32)
        self._soft_caps = np.array([layer.soft_cap or 0.0 for layer in self.layers], np.float32)
        scores = zip(self._score_scales, self._soft_caps, self._windows.tolist(), strict=True)
        self._scores = [Scores(scale, soft_cap, window, NOTHING) for scale, soft_cap, window in scores]
        self._group = group = self.num_heads // self.num_kv_heads
        self._decode_rows = max(rows for rows in range(1, MOST_REGISTER_ROWS + 1) if group % rows == 0)
        self._prefill_rows = max(PREFILL_REGISTER_ROWS, self._decode_rows)
        vectors = self._size // TILE
        fitting = range(1, (REGISTERS - 1) // (self._prefill_rows + 1) + 1)
        self._columns = max(columns for columns in fitting if vectors % columns == 0)
        self._chunk = max(1, QUERY_ROWS // group)
        self._most_rows = -(-self._chunk * group // self._prefill_rows) * self._prefill_rows
        self._workers = torch.get_num_threads()
        self._counter = np.zeros(1, dtype=np.int64)
        self._batch: Batch | None = None
        self._arguments: Paged | None = None
        self._heads: WeakKeyDictionary[Rotary, Heads] = WeakKeyDictionary()

    @property
    def _tensors(self) -> list[torch.Tensor]:
        """All that has blocks."""
        return [self._key, self._value, *([self._scales] if len(self._scales[0]) else [])]

    def rotates_in_kernel(self, rotary: Rotary) -> bool:
        """Whether a head and what rope turns of it are whole vectors."""
        return self.head_dim % TILE == 0 and (rotary.interleaved or rotary.turned % (2 * TILE) == 0)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, batch: Batch) -> None:
        key, value = self._padded(key), self._padded(value)
        step = self.arguments(batch)
        write(as_array(key), as_array(value), step.slots, self._caches[layer], step.clipped[layer])

    def rotate_and_write(self, layer: int, qkv: torch.Tensor, rotary: Rotary, batch: Batch) -> torch.Tensor:
        assert qkv.dtype == torch.float32
        heads = self._heads_of(rotary)
        if heads is None:
            query, written = prepare(qkv, rotary, self.layers[layer], batch.positions)
            if written is not None:
                self.write(layer, *written, batch)
            return query.contiguous()
        step = self.arguments(batch)
        query = qkv.new_empty(len(qkv), self.num_heads, self.head_dim)
        if layer in self._readers:
            if len(qkv) < SERIAL_TOKENS:
                rotate(as_array(qkv), step.positions, heads, as_array(query))
            else:
                rotate_parallel(as_array(qkv), step.positions, heads, as_array(query), self._workers)
            return query
        cache, clipped = self._caches[layer], step.clipped[layer]
        arguments = as_array(qkv), step.positions, step.slots, heads, cache, clipped, as_array(query)
        if len(qkv) < SERIAL_TOKENS:
            rotate_and_write(*arguments)
        else:
            rotate_and_write_parallel(*arguments, self._workers)
        return query

    def attend(self, layer: int, query: torch.Tensor, batch: Batch, sinks: torch.Tensor | None = None) -> torch.Tensor:
        assert (sinks is not None) == self.layers[layer].sinks
        plan, query = self.arguments(batch), self._padded(query)
        output = torch.empty_like(query)
        step = Step(as_array(query), plan.block_tables, as_array(output), plan.partial_sums, plan.partial_states)
        scores = self._scores[layer] if sinks is None else self._scores[layer]._replace(sinks=as_array(sinks))
        for kernel, items, most in (
            (plan.decode_kernel, plan.decode_items, self._group),
            (plan.prefill_kernel, plan.prefill_items, self._most_rows),
        ):
            if len(items):
                cache, workers = self._caches[layer], self._workers
                attend(kernel, step, cache, items, self._counter, scores, most, workers)
        if len(plan.merges):
            merge(step, plan.merges)
        return output if self._size == self.head_dim else output[..., : self.head_dim]

    def arguments(self, batch: Batch) -> Paged:
        """What the kernels take of this step, made once and shared by every layer."""
        if self._arguments is None or self._batch is not batch:
            self._batch, self._arguments = batch, self._plan(batch)
        return self._arguments

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        for source, destination in pairs:
            for cache in self._tensors:
                cache[:, destination] = cache[:, source]

    def cache_bytes(self) -> int:
        return sum(cache.nbytes for cache in self._tensors)

    def take_largest_scales(self) -> dict[int, torch.Tensor]:
        """By layer that has keys [2, G] float32: the largest scale of a key and of a value in each head since this was
        asked last, without the padding block. Only where each has its own."""
        scales = self._scales[:, PADDING_BLOCK + 1 :].float().amax(dim=(1, 3, 5)).mT.contiguous() / self._worth
        self._scales.zero_()
        return dict(zip((layer for layer in self.served if self.layers[layer].has_keys), scales, strict=True))

    def _plan(self, batch: Batch) -> Paged:
        layers, tokens = len(self.layers), len(batch.slot_mapping)
        if batch.clipped is None and self._is_static:
            batch.clipped = torch.zeros(layers, tokens, dtype=torch.int64)
        decodes, prefills, merges = plan(batch.query_starts.numpy(), batch.context_lengths.numpy(), self._chunk)
        partials = int(merges[:, 2].sum()) if len(merges) else 0
        return Paged(
            key=self._arrays[0],
            value=self._arrays[1],
            scales=self._arrays[2],
            static=self._arrays[3],
            places=self._places,
            positions=batch.positions.numpy(),
            slots=batch.slot_mapping.numpy(),
            clipped=np.empty((layers, 0), np.int64) if batch.clipped is None else batch.clipped.numpy(),
            block_tables=batch.block_tables.numpy(),
            decode_items=decodes,
            prefill_items=prefills,
            merges=merges,
            partial_sums=np.empty((partials, self.num_heads, self._size), dtype=np.float32),
            partial_states=np.empty((partials, self.num_heads, 2), dtype=np.float32),
            counter=self._counter,
            windows=self._windows,
            score_scales=self._score_scales,
            soft_caps=self._soft_caps,
            decode_most=self._group,
            prefill_most=self._most_rows,
            decode_kernel=self._kernel(self._decode_rows) if len(decodes) else 0,
            prefill_kernel=self._kernel(self._prefill_rows) if len(prefills) else 0,
            workers=self._workers,
        )

    def _kernel(self, rows: int) -> int:
        """Compiled when it is first needed."""
        return kernel_address(self._arrays[0].dtype, rows, self._columns)

    def _heads_of(self, rotary: Rotary) -> Heads | None:
        """Views of a layer's tables, made once; None where the kernel does not take them."""
        heads = self._heads.get(rotary)
        if heads is None and self.rotates_in_kernel(rotary):
            cos, sin = (NO_ANGLES if table is None else table.numpy() for table in (rotary.cos, rotary.sin))
            vectors = rotary.query_norm, rotary.key_norm, rotary.query_scale
            query, key, scale = (NOTHING if vector is None else vector.numpy() for vector in vectors)
            eps = np.float32(rotary.eps)
            heads = Heads(cos, sin, query, key, eps, scale, rotary.interleaved, rotary.value_norm)
            self._heads[rotary] = heads
        return heads

    def _padded(self, heads: torch.Tensor) -> torch.Tensor:
        assert heads.dtype == torch.float32
        missing = self._size - self.head_dim
        return F.pad(heads, (0, missing)) if missing else heads.contiguous()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """At the start of a cache line, and without touching it: what no token ever fills takes no memory."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.zeros(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return torch.from_numpy(memory[start : start + size]).view(dtype).view(shape)
