"""StepBuffers: what the CUDA kernels read of a step, at addresses that never change, as CUDA graphs need it."""

import numpy as np
import torch

from .batch import LoraBatch, PageTable
from .chunks import NO_SLOT, make_chunks
from .kernels.cuda import StepTensors
from .kernels.tiles import bound_chunks, intermediate_elements


class StepBuffers:
    """Made once for steps of up to `tokens` tokens; `update` before each step is one copy to the device.

    A CUDA graph: `update` with any batch and capture; from then on `update` and replay, with None for a step of the
    base alone. Without graphs `add_lora` makes one for the batch by itself. On the device it takes 6 KiB a token, and
    eight times that for the first 256, where adapters may have 512 ranks.
    """

    def __init__(self, table: PageTable, tokens: int) -> None:
        self._slots, _, pages = table.offset.shape
        on_device = table.arena.device.type == "cuda"
        tokens = _aligned(tokens)
        chunks = _aligned(bound_chunks(tokens, self._slots))
        self._host = torch.empty(3 * chunks + 2 * tokens, dtype=torch.int32, pin_memory=on_device)
        self._device = torch.empty_like(self._host, device=table.arena.device)
        self._copied = _event() if on_device else None
        rows, scales = self._device[3 * chunks :].view(2, tokens)
        room = intermediate_elements(tokens, pages)
        self.tensors = StepTensors(
            chunks=self._device[: 3 * chunks].view(chunks, 3), tokens=rows, scales=scales.view(torch.float32),
            intermediate=torch.empty(room, dtype=torch.float32, device=table.arena.device),
            arena=table.arena, offset=table.offset, rank=table.rank, scaling=table.scaling,
        )  # fmt: skip
        self.update(None)

    def bound_chunks(self, tokens: int) -> int:
        """Length of the part of the list that a step of `tokens` tokens can reach."""
        return bound_chunks(tokens, self._slots)

    def update(self, batch: LoraBatch | None) -> None:
        """Take over the batch's tokens, at most as many as there is room for; None: no token uses an adapter."""
        if self._copied is not None:
            self._copied.synchronize()
        self._write(self._host.numpy(), batch)
        self._device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def _write(self, host: np.ndarray, batch: LoraBatch | None) -> None:
        most, room = len(self.tensors.chunks), len(self.tensors.tokens)
        listed, (rows, scales) = host[: 3 * most].reshape(most, 3), host[3 * most :].reshape(2, room)
        listed[:] = NO_SLOT
        if batch is None:
            return
        assert len(batch.round_starts) == 2, "chunks of one launch may not share a token"
        chunks, tokens = make_chunks(batch.segment_starts.numpy(), batch.segment_slots.numpy()), batch.sorted_tokens
        listed[: len(chunks)] = chunks
        rows[: len(tokens)] = tokens
        scales[: len(tokens)] = batch.scales.numpy().view(np.int32)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


def _aligned(count: int) -> int:
    """So that each part of the buffer begins at a multiple of 16 bytes: one compiled kernel serves all sizes."""
    return -(-count // 4) * 4
