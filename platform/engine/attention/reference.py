"""ReferenceAttention: gather and softmax in plain torch, for any device. What the fast backends are tested against."""

import torch

from ..batch import Batch
from .backend import CacheShape, Rotary
from .eight_bits import dequantize, quantize, quantize_by


class ReferenceAttention:
    """AttentionBackend with a cache of [blocks * block_size, G, D] per layer; computes in `compute_dtype`.

    soft_cap as for CudaAttention.
    """

    def __init__(
        self,
        shape: CacheShape,
        *,
        device: torch.device | str = "cpu",
        compute_dtype: torch.dtype = torch.float32,
        soft_cap: float | None = None,
    ) -> None:
        slots = (shape.num_layers, shape.num_blocks * shape.block_size, shape.num_kv_heads)
        self._cache = torch.zeros(2, *slots, shape.head_dim, dtype=shape.cache_dtype, device=device)
        self._static = shape.static_scales
        scaled = shape.cache_dtype.itemsize == 1 and shape.static_scales is None
        scales = (2, *slots, 1) if scaled else (2, shape.num_layers, 0)
        self._scales = torch.zeros(scales, dtype=torch.bfloat16, device=device)
        self._block_size = shape.block_size
        self._num_heads = shape.num_heads
        self._scale = shape.scale
        self._soft_cap = soft_cap
        self._sliding_window = shape.sliding_window
        self._compute_dtype = compute_dtype

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, batch: Batch) -> None:
        if self._static is not None and batch.clipped is None:
            batch.clipped = torch.zeros(self._cache.shape[1], len(key), dtype=torch.int64)
        counts = []
        for place, heads in enumerate((key, value)):
            if self._static is not None:
                heads, clipped = quantize_by(heads, self._static[layer, place], self._cache.dtype)
                counts.append(clipped)
            elif self._cache.itemsize == 1:
                heads, scales = quantize(heads, self._cache.dtype)
                self._scales[place, layer, batch.slot_mapping] = scales.bfloat16()
            self._cache[place, layer, batch.slot_mapping] = heads.to(self._cache.dtype)
        if batch.clipped is not None and counts:
            batch.clipped[layer] = sum(counts)

    def rotate_and_write(self, layer: int, qkv: torch.Tensor, rotary: Rotary, batch: Batch) -> torch.Tensor:
        kv_heads, head_dim = self._cache.shape[3:]
        heads = qkv.view(len(qkv), -1, head_dim).to(self._compute_dtype)
        query, key, value = torch.split(heads, [self._num_heads, kv_heads, kv_heads], dim=1)
        key = rotate(normed(key, rotary.key_norm, rotary.eps), rotary, batch.positions)
        self.write(layer, key, value, batch)
        return rotate(normed(query, rotary.query_norm, rotary.eps), rotary, batch.positions).to(qkv.dtype)

    def attend(self, layer: int, query: torch.Tensor, batch: Batch) -> torch.Tensor:
        starts, lengths = batch.query_starts.tolist(), batch.context_lengths.tolist()
        outputs = [
            self._attend_one(layer, query[first:last], length, blocks)
            for first, last, length, blocks in zip(starts, starts[1:], lengths, batch.block_tables, strict=False)
        ]
        return torch.cat(outputs).to(query.dtype)

    def _attend_one(self, layer: int, query: torch.Tensor, length: int, blocks: torch.Tensor) -> torch.Tensor:
        """query [T, H, D] of one sequence -> [T, H, D]."""
        offsets = torch.arange(length, device=query.device)
        slots = blocks[offsets // self._block_size].long() * self._block_size + offsets % self._block_size
        group = self._num_heads // self._cache.shape[3]
        key, value = self._heads(layer, slots).repeat_interleave(group, dim=2)
        scores = torch.einsum("thd,shd->hts", query.to(self._compute_dtype), key) * self._scale
        if self._soft_cap is not None:
            scores = self._soft_cap * torch.tanh(scores / self._soft_cap)
        scores.masked_fill_(~self._visible(layer, len(query), length, query.device), float("-inf"))
        return torch.einsum("hts,shd->thd", scores.softmax(dim=-1), value)

    def _heads(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        """Keys and values at `slots` [S] as they count: [2, S, G, D]."""
        stored = self._cache[:, layer, slots]
        if self._static is not None:
            return dequantize(stored, self._static[layer, :, None, :, None], self._compute_dtype)
        if self._cache.itemsize == 1:
            return dequantize(stored, self._scales[:, layer, slots], self._compute_dtype)
        return stored.to(self._compute_dtype)

    def _visible(self, layer: int, queries: int, length: int, device: torch.device) -> torch.Tensor:
        """[queries, length] bool: which key each of the last `queries` tokens may see."""
        position = torch.arange(length - queries, length, device=device)[:, None]
        distance = position - torch.arange(length, device=device)
        window = self._sliding_window[layer]
        return (distance >= 0) & (distance < (length if window is None else window))

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        for tokens in (self._cache, self._scales):
            for source, destination in pairs if tokens.numel() else []:
                tokens[:, :, self._slots(destination)] = tokens[:, :, self._slots(source)]

    def _slots(self, block: int) -> slice:
        return slice(block * self._block_size, (block + 1) * self._block_size)

    def cache_bytes(self) -> int:
        return self._cache.nbytes + self._scales.nbytes


def rotate(heads: torch.Tensor, rotary: Rotary, positions: torch.Tensor) -> torch.Tensor:
    """Half-rotation rope on heads [T, n, D], in their dtype."""
    cos, sin = (table[positions, None].to(heads.dtype) for table in (rotary.cos, rotary.sin))
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def normed(heads: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    if weight is None:
        return heads
    return heads * torch.rsqrt(heads.pow(2).mean(dim=-1, keepdim=True) + eps) * weight.to(heads.dtype)
