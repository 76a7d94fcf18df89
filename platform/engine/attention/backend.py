"""AttentionBackend: the small interface between the decoder and the paged KV cache. One file per device.

Shapes: T new tokens, H query heads, G KV heads, D head size.
"""

from typing import Protocol

import torch

from ..batch import Batch


class AttentionBackend(Protocol):
    """Owns the cache tensors of all layers."""

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, batch: Batch) -> None:
        """Store key and value [T, G, D] of the new tokens at batch.slot_mapping."""

    def attend(self, layer: int, query: torch.Tensor, batch: Batch) -> torch.Tensor:
        """query [T, H, D], rope applied -> [T, H, D]. Causal over each sequence's cached tokens, scaled by D^-0.5
        (or the model's own scale), within the layer's sliding window where it has one."""

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole blocks, source to destination, in every layer (copy-on-write)."""

    def cache_bytes(self) -> int:
        """Bytes of the cache tensors."""
