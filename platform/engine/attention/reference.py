"""ReferenceAttention: gather and softmax in plain torch, for any device. What the fast backends are tested against."""

import torch

from ..batch import Batch
from .backend import CacheShape, Rotary
from .eight_bits import dequantize, quantize, quantize_by
from .layer import owner
from .prepare import prepare


class ReferenceAttention:
    """AttentionBackend with a cache [2, blocks * block_size, G, D] of each layer that has keys of its own; computes in
    `compute_dtype`."""

    takes_own_norms = False

    def __init__(
        self, shape: CacheShape, *, device: torch.device | str = "cpu", compute_dtype: torch.dtype = torch.float32
    ) -> None:
        self.layers, self._block_size, self._compute_dtype = shape.layers, shape.block_size, compute_dtype
        self._static = shape.static_scales
        slots = shape.num_blocks * shape.block_size
        scaled = slots if shape.cache_dtype.itemsize == 1 and shape.static_scales is None else 0
        self._caches: dict[int, torch.Tensor] = {}
        self._scales: dict[int, torch.Tensor] = {}
        for number, layer in enumerate(shape.layers):
            if layer.has_keys:
                heads, size = layer.num_kv_heads, layer.head_dim
                self._caches[number] = torch.zeros(2, slots, heads, size, dtype=shape.cache_dtype, device=device)
                self._scales[number] = torch.zeros(2, scaled, heads, 1, dtype=torch.bfloat16, device=device)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, batch: Batch) -> None:
        if self._static is not None and batch.clipped is None:
            batch.clipped = torch.zeros(len(self.layers), len(key), dtype=torch.int64)
        cache, counts = self._caches[layer], []
        for place, heads in enumerate((key, value)):
            if self._static is not None:
                heads, clipped = quantize_by(heads, self._static[layer][place], cache.dtype)
                counts.append(clipped)
            elif cache.itemsize == 1:
                heads, scales = quantize(heads, cache.dtype)
                self._scales[layer][place, batch.slot_mapping] = scales.bfloat16()
            cache[place, batch.slot_mapping] = heads.to(cache.dtype)
        if batch.clipped is not None and counts:
            batch.clipped[layer] = sum(counts)

    def rotate_and_write(self, layer: int, qkv: torch.Tensor, rotary: Rotary, batch: Batch) -> torch.Tensor:
        query, written = prepare(qkv.to(self._compute_dtype), rotary, self.layers[layer], batch.positions)
        if written is not None:
            self.write(layer, *written, batch)
        return query.to(qkv.dtype)

    def attend(self, layer: int, query: torch.Tensor, batch: Batch, sinks: torch.Tensor | None = None) -> torch.Tensor:
        assert (sinks is not None) == self.layers[layer].sinks
        starts, lengths = batch.query_starts.tolist(), batch.context_lengths.tolist()
        outputs = [
            self._attend_one(layer, query[first:last], length, blocks, sinks)
            for first, last, length, blocks in zip(starts, starts[1:], lengths, batch.block_tables, strict=False)
        ]
        return torch.cat(outputs).to(query.dtype)

    def _attend_one(
        self, layer: int, query: torch.Tensor, length: int, blocks: torch.Tensor, sinks: torch.Tensor | None
    ) -> torch.Tensor:
        """query [T, H, D] of one sequence -> [T, H, D]."""
        attention = self.layers[layer]
        offsets = torch.arange(length, device=query.device)
        slots = blocks[offsets // self._block_size].long() * self._block_size + offsets % self._block_size
        group = attention.num_heads // attention.num_kv_heads
        key, value = self._heads(owner(self.layers, layer), slots).repeat_interleave(group, dim=2)
        scores = torch.einsum("thd,shd->hts", query.to(self._compute_dtype), key) * attention.scale
        if attention.soft_cap is not None:
            scores = attention.soft_cap * torch.tanh(scores / attention.soft_cap)
        scores.masked_fill_(~self._visible(layer, len(query), length, query.device), float("-inf"))
        if sinks is not None:
            sink = sinks.to(scores.dtype)[:, None, None].expand(-1, len(query), 1)
            return torch.einsum("hts,shd->thd", torch.cat((scores, sink), -1).softmax(dim=-1)[..., :-1], value)
        return torch.einsum("hts,shd->thd", scores.softmax(dim=-1), value)

    def _heads(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        """Keys and values at `slots` [S] as they count: [2, S, G, D]."""
        stored = self._caches[layer][:, slots]
        if self._static is not None:
            return dequantize(stored, self._static[layer][:, None, :, None], self._compute_dtype)
        if stored.itemsize == 1:
            return dequantize(stored, self._scales[layer][:, slots], self._compute_dtype)
        return stored.to(self._compute_dtype)

    def _visible(self, layer: int, queries: int, length: int, device: torch.device) -> torch.Tensor:
        """[queries, length] bool: which key each of the last `queries` tokens may see."""
        position = torch.arange(length - queries, length, device=device)[:, None]
        distance = position - torch.arange(length, device=device)
        return (distance >= 0) & (distance < (self.layers[layer].window or length))

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        for tokens in (*self._caches.values(), *self._scales.values()):
            for source, destination in pairs if tokens.numel() else []:
                tokens[:, self._slots(destination)] = tokens[:, self._slots(source)]

    def _slots(self, block: int) -> slice:
        return slice(block * self._block_size, (block + 1) * self._block_size)

    def cache_bytes(self) -> int:
        return sum(tokens.nbytes for tokens in (*self._caches.values(), *self._scales.values()))
