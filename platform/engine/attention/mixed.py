"""MixedAttention: layers whose heads are not all alike, each over the backend of its geometry. They share block ids."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from ..batch import Batch
from .backend import AttentionBackend, Rotary


class GroupAttention(AttentionBackend, Protocol):
    """AttentionBackend of some layers, which keep their numbers."""

    @property
    def served(self) -> Sequence[int]:
        """Those layers."""

    def take_largest_scales(self) -> dict[int, torch.Tensor]:
        """By layer that has keys [2, G] float32, where each key and value has its own scale."""


class MixedAttention:
    """AttentionBackend; one call more for each call."""

    def __init__(self, groups: Iterable[GroupAttention]) -> None:
        self.groups = list(groups)
        self.takes_own_norms = all(group.takes_own_norms for group in self.groups)
        self._of = {layer: group for group in self.groups for layer in group.served}

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, batch: Batch) -> None:
        self._of[layer].write(layer, key, value, batch)

    def rotate_and_write(self, layer: int, qkv: torch.Tensor, rotary: Rotary, batch: Batch) -> torch.Tensor:
        return self._of[layer].rotate_and_write(layer, qkv, rotary, batch)

    def attend(self, layer: int, query: torch.Tensor, batch: Batch, sinks: torch.Tensor | None = None) -> torch.Tensor:
        return self._of[layer].attend(layer, query, batch, sinks)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        for group in self.groups:
            group.copy_blocks(pairs)

    def take_largest_scales(self) -> dict[int, torch.Tensor]:
        return {layer: scales for group in self.groups for layer, scales in group.take_largest_scales().items()}

    def cache_bytes(self) -> int:
        return sum(group.cache_bytes() for group in self.groups)
