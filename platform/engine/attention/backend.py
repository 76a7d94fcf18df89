"""AttentionBackend: the small interface between the decoder and the paged KV cache. One file per device.

Shapes: T new tokens, H query heads, G KV heads, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from ..batch import Batch


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Rotary:
    """What happens to query and key heads before attention: RMS norm (Qwen3), then half-rotation rope."""

    cos: torch.Tensor
    """[positions, D / 2] float32."""
    sin: torch.Tensor
    """[positions, D / 2] float32."""
    query_norm: torch.Tensor | None = None
    """[D] float32, weight of the norm over each query head; None: no norm. `key_norm` alike, both or neither."""
    key_norm: torch.Tensor | None = None
    eps: float = 1e-6


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CacheShape:
    """Of the paged cache and of the heads that read it."""

    num_layers: int
    num_blocks: int
    block_size: int
    """Tokens of a block."""
    num_heads: int
    """Of the query."""
    num_kv_heads: int
    head_dim: int
    cache_dtype: torch.dtype
    scale: float
    """Of scores."""
    sliding_window: Sequence[int | None]
    """By layer; None: all of the sequence is seen."""
    static_scales: torch.Tensor | None = None
    """[L, 2, G] float32: of keys and of values in 8 bits, by which numbers are divided as they are stored. None: every
    key and value gets its own."""

    def __post_init__(self) -> None:
        assert len(self.sliding_window) == self.num_layers and self.num_heads % self.num_kv_heads == 0


HEAD_NORMS: Final = frozenset({"q_norm", "k_norm"})
"""Kinds of modules: norms of each query's and key's head."""


class AttentionBackend(Protocol):
    """Owns the cache tensors of all layers."""

    takes_own_norms: bool
    """Whether `rotate_and_write` takes a weight of HEAD_NORMS that a token's adapter brings in place of the base's."""

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, batch: Batch) -> None:
        """Store key and value [T, G, D] of the new tokens at batch.slot_mapping; where the scales are static, note in
        batch.clipped what they clip."""

    def rotate_and_write(self, layer: int, qkv: torch.Tensor, rotary: Rotary, batch: Batch) -> torch.Tensor:
        """qkv [T, (H + 2 G) D] of the fused linear: norm and rotate query and key, `write` key and value.

        Returns the query [T, H, D] that `attend` takes. The same as doing each step apart, in one pass.
        """

    def attend(self, layer: int, query: torch.Tensor, batch: Batch) -> torch.Tensor:
        """query [T, H, D], rope applied -> [T, H, D]. Causal over each sequence's cached tokens, scaled by D^-0.5
        (or the model's own scale), within the layer's sliding window where it has one."""

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole blocks, source to destination, in every layer (copy-on-write)."""

    def cache_bytes(self) -> int:
        """Bytes of the cache tensors."""
