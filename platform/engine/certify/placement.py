"""Where the prompts are while they go through the served path."""

from dataclasses import replace
from typing import Protocol

import torch

from ..attention.backend import AttentionBackend, CacheShape
from ..attention.cpu import cpu_attention
from ..batch import Batch
from ..delta_net.backend import DeltaNetBackend
from ..delta_net.cpu import CpuDeltaNet
from ..delta_net.shape import StateShape
from ..device.device import Device


class Placement(Protocol):
    def place(self, batch: Batch) -> Batch:
        """A batch on the host -> the same as the served layers read it."""

    def sample(self, batch: Batch, rows: torch.Tensor) -> Batch:
        """A placed batch of which the logits of `rows` [R], on the host, are needed and no others."""

    def cache(self, shape: CacheShape, tokens: int) -> AttentionBackend:
        """Empty, for batches of up to `tokens` tokens."""

    def states(self, shape: StateShape, slots: int) -> DeltaNetBackend:
        """Of one recurrent layer."""


class OnHost:
    def place(self, batch: Batch) -> Batch:
        return batch

    def sample(self, batch: Batch, rows: torch.Tensor) -> Batch:
        return replace(batch, sample_rows=rows)

    def cache(self, shape: CacheShape, tokens: int) -> AttentionBackend:
        """Parts of it that nobody touches take no memory."""
        return cpu_attention(shape)

    def states(self, shape: StateShape, slots: int) -> DeltaNetBackend:
        return CpuDeltaNet(shape, 1, slots)


def choose_placement(device: Device) -> Placement:
    if not device.is_cuda:
        return OnHost()
    from .on_cuda import OnCuda

    return OnCuda(device.device)
