"""What the CUDA kernels read of a step, at addresses that never change, as CUDA graphs need it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..kernels.cuda.entry import StepTensors
from ..kernels.cuda.tiles import bound_chunks, intermediate_elements
from .batch import NO_SLOT, LoraBatch, PageTable
from .chunks import make_chunks


class StepLists:
    """The list of chunks and its rows, for steps of up to `tokens` tokens: written on the host, read at `device`.

    A CUDA graph: `write` any batch, copy it to the device and capture; from then on write, copy and replay, with None
    for a step of the base alone.
    """

    def __init__(self, table: PageTable, tokens: int, device: torch.Tensor, beside: "StepLists | None" = None) -> None:
        """device: [list_words(table, tokens)] int32. Beside it lies what the kernels pass on: 6 KiB a token, and 16
        times that for the first 256, where adapters may have 512 ranks; lists `beside`, no shorter, share it."""
        self.words = device
        self.slots: torch.Tensor
        """[tokens] int32: of each token's adapter, NO_SLOT where it has none; `factors` alike, float32."""
        self._slots, _, pages = table.offset.shape
        chunks, tokens = _sizes(table, tokens)
        rows, scales, self.slots, factors = device[3 * chunks :].view(4, tokens)
        self.factors = factors.view(torch.float32)
        size = intermediate_elements(tokens, pages)
        self.tensors: StepTensors = StepTensors(
            chunks=device[: 3 * chunks].view(chunks, 3), tokens=rows, scales=scales.view(torch.float32),
            intermediate=torch.empty(size, device=device.device) if beside is None else beside.tensors.intermediate,
            arena=table.arena, offset=table.offset, rank=table.rank, scaling=table.scaling,
        )  # fmt: skip

    def bound_chunks(self, tokens: int) -> int:
        """Length of the part of the list that a step of `tokens` tokens can reach."""
        return bound_chunks(tokens, self._slots)

    def write(self, host: np.ndarray, batch: LoraBatch | None) -> None:
        """Write to `host`, int32 like `device`, tokens that there is room for; None: no token uses an adapter."""
        most, room = len(self.tensors.chunks), len(self.tensors.tokens)
        listed, (rows, scales, slots, factors) = host[: 3 * most].reshape(most, 3), host[3 * most :].reshape(4, room)
        listed[:] = slots[:] = NO_SLOT  # past the end of the list, where programs end at once
        if batch is None:
            return
        assert len(batch.round_starts) == 2, "chunks of one launch may not share a token"
        starts, owners, tokens = (
            part.numpy() for part in (batch.segment_starts, batch.segment_slots, batch.sorted_tokens)
        )
        chunks = make_chunks(starts, owners)
        listed[: len(chunks)] = chunks
        rows[: len(tokens)] = tokens
        scales[: len(tokens)] = factors[tokens] = batch.scales.numpy().view(np.int32)
        slots[tokens] = owners.repeat(np.diff(starts))


class StepAdapters(NamedTuple):
    """The adapters of a step on the device: LoraBatch.arrays there."""

    rounds: Sequence[StepLists]
    """One after the other; no token twice in one of them."""
    slots: torch.Tensor
    """[T] int32: of each token's first adapter, NO_SLOT where it has none."""
    head: Sequence[StepLists] = ()
    """As `rounds`, of the rows whose logits are needed, where an adapter changes the head."""


def lists_of_rows(batch: LoraBatch, rows: torch.Tensor, beside: StepLists | None = None) -> list[StepLists]:
    """Of some tokens [R] of a batch, on their way to the device in memory of their own, but for what they share with
    lists `beside`: not for what is captured."""
    table = batch.table
    found = []
    for single in rounds_of_rows(batch, rows):
        host = torch.empty(
            list_words(table, len(rows)), dtype=torch.int32, pin_memory=table.arena.device.type == "cuda"
        )
        lists = StepLists(table, len(rows), torch.empty_like(host, device=table.arena.device), beside)
        lists.write(host.numpy(), single)
        # Pinned memory of torch's cache is given again only when all copies of it are done.
        lists.words.copy_(host, non_blocking=True)
        found.append(lists)
    return found


def rounds_of_rows(batch: LoraBatch, rows: torch.Tensor) -> list[LoraBatch]:
    """Of some tokens [R] of a batch: as many as any of them has adapters, which may be fewer than the batch has."""
    part = LoraBatch.build(batch.table, batch.token_slot[rows], batch.token_scale[rows])
    return [] if part is None else part.rounds()


class StepBuffers(StepLists):
    """StepLists with memory of their own: `update` before each step is one copy to the device.

    Without graphs `add_lora` makes one for the batch by itself.
    """

    def __init__(self, table: PageTable, tokens: int) -> None:
        on_device = table.arena.device.type == "cuda"
        self._host = torch.empty(list_words(table, tokens), dtype=torch.int32, pin_memory=on_device)
        self._device = torch.empty_like(self._host, device=table.arena.device)
        self._copied = _event() if on_device else None
        super().__init__(table, tokens, self._device)
        self.update(None)

    def update(self, batch: LoraBatch | None) -> None:
        """Take over the batch's tokens; None: no token uses an adapter."""
        if self._copied is not None:
            self._copied.synchronize()
        self.write(self._host.numpy(), batch)
        self._device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


def list_words(table: PageTable, tokens: int) -> int:
    """Numbers of 32 bits that the lists of steps of up to `tokens` tokens take."""
    chunks, tokens = _sizes(table, tokens)
    return 3 * chunks + 4 * tokens


def _sizes(table: PageTable, tokens: int) -> tuple[int, int]:
    """Chunks and tokens that there is room for."""
    tokens = _aligned(tokens)
    return _aligned(bound_chunks(tokens, table.offset.shape[0])), tokens


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


def _aligned(count: int) -> int:
    """So that each part of the buffer begins at a multiple of 16 bytes: one compiled kernel serves all sizes."""
    return -(-count // 4) * 4
