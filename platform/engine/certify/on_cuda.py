"""Prompts on a CUDA device, in batches as the engine's steps are there, in memory of their own."""

from dataclasses import fields, replace
from typing import Any

import torch

from loraplex.lora.apply.batch import LoraBatch
from loraplex.lora.apply.step_buffers import StepAdapters, lists_of_rows
from loraplex.lora.files.manifest import HEAD

from ..attention.backend import AttentionBackend, CacheShape
from ..attention.cuda import cuda_attention
from ..batch import Batch, StateSlots
from ..delta_net.backend import DeltaNetBackend
from ..delta_net.cuda import CudaDeltaNet
from ..delta_net.shape import StateShape


class OnCuda:
    """The Placement of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def place(self, batch: Batch) -> Batch:
        """With the chunks of its adapters."""
        states = None if batch.states is None else replace(batch.states, **self._placed(batch.states))
        lora = None if batch.lora is None else self._placed_adapters(batch.lora)
        return replace(batch, **self._placed(batch), states=states, lora=lora)

    def sample(self, batch: Batch, rows: torch.Tensor) -> Batch:
        lora = batch.lora
        if lora is not None and HEAD in lora.changed:
            head = lists_of_rows(lora, rows, lora.arrays.rounds[0])
            lora = replace(lora, arrays=lora.arrays._replace(head=head))
        return replace(batch, sample_rows=rows.to(self._device), lora=lora)

    def cache(self, shape: CacheShape, tokens: int) -> AttentionBackend:
        return cuda_attention(shape, max_tokens=tokens, device=self._device)

    def states(self, shape: StateShape, slots: int) -> DeltaNetBackend:
        return CudaDeltaNet(shape, 1, slots, self._device)

    def _placed(self, tensors: Batch | StateSlots) -> dict[str, Any]:
        """Those that are right there."""
        named = {field.name: getattr(tensors, field.name) for field in fields(tensors)}
        return {name: value.to(self._device) for name, value in named.items() if isinstance(value, torch.Tensor)}

    def _placed_adapters(self, lora: LoraBatch) -> LoraBatch:
        """What says which token has which adapter stays on the host too."""
        rounds = lists_of_rows(lora, torch.arange(len(lora.token_slot)))
        slots = lora.token_slot[:, 0].contiguous().to(self._device)
        return replace(lora, arrays=StepAdapters(rounds, slots))
