"""How adapters' weights reach a device on which steps run: a stream for copies beside the stream of the steps.

What is enqueued on a stream runs in its order, some time later. Copies of whole adapters go over the stream of copies,
and a loader thread waits for them; the engine thread enqueues and never waits.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

import torch

from ..files.values import Bits

ALIGNMENT: Final = 16
"""Bytes that each part of packed memory begins at a multiple of."""


class Event(Protocol):
    """A place in a stream."""

    def synchronize(self) -> None:
        """Wait until all that was enqueued before it is done."""

    def query(self) -> bool:
        """Whether it is, without waiting."""


class Stream(Protocol):
    """Work runs in the order in which it was enqueued, some time later."""

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy of equal shapes. The host may change what it owns of both only after a later event."""

    def record(self) -> Event:
        """An event after all that was enqueued so far."""

    def wait(self, event: Event) -> None:
        """What is enqueued from now on runs after this event of another stream."""


class Streams(NamedTuple):
    steps: Stream
    """That steps are submitted to, and what the engine thread lets torch do: its current stream."""
    copies: Stream
    """Used by the loader thread alone."""


class CudaStream:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            destination.copy_(source, non_blocking=True)

    def record(self) -> Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, torch.cuda.Event)
        self._stream.wait_event(event)


class PageCopier:
    """Moves what steps read: pages over the stream of copies, table entries between two steps. Without streams, all at
    once in the host's memory."""

    def __init__(self, device: torch.device, streams: Streams | None) -> None:
        """Without `streams` on a CUDA device: steps are on its default stream."""
        self._pinned = device.type == "cuda"
        self._streams = _default_streams(device) if streams is None and self._pinned else streams

    @property
    def in_place(self) -> bool:
        """Whether pages may be written where they are."""
        return self._streams is None

    def mark(self) -> Event | None:
        """After what the engine thread has done to pages so far, and the steps it has submitted; None: all is done."""
        return None if self._streams is None else self._streams.steps.record()

    def staging(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """[size] in the host's memory, from where copies are fast."""
        return torch.empty(size, dtype=dtype, pin_memory=self._pinned)

    def carry(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], after: Event | None) -> None:
        """Copy targets from sources once `after` has come; on return they are there. On the loader thread."""
        if self._streams is None:
            # Without torch, whose operations would start a second team of OpenMP threads here.
            for target, source in pairs:
                bits_of(target)[:] = bits_of(source)
            return
        copies = self._streams.copies
        if after is not None:
            copies.wait(after)
        for target, source in pairs:
            copies.copy(target, source)
        copies.record().synchronize()

    def fetch(self, tensor: torch.Tensor) -> Generator[None, None, torch.Tensor]:
        """On the engine thread: `tensor` on the host, as what was enqueued so far leaves it. Yields while it comes."""
        if self._streams is None:
            return tensor
        steps, found = self._streams.steps, self.staging(tensor.numel(), tensor.dtype)
        steps.copy(found, tensor.flatten())
        arrived = steps.record()
        while not arrived.query():
            yield
        return found.view(tensor.shape)

    def put(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """On the engine thread, without waiting: for steps submitted from now on, and for none before."""
        if self._streams is None:
            target.copy_(source)
        else:
            self._streams.steps.copy(target, source.pin_memory() if self._pinned else source)

    def put_all(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """As `put` of each target and source, from one piece of pinned memory: to pin memory takes longer than a
        copy."""
        ends = [*accumulate(-(-source.nbytes // ALIGNMENT) * ALIGNMENT for _, source in pairs)]
        if self._streams is None or not ends:
            for target, source in pairs:
                target.copy_(source)
            return
        packed = self.staging(ends[-1], torch.uint8)
        for (target, source), first in zip(pairs, [0, *ends], strict=False):
            part = packed[first : first + source.nbytes].view(source.dtype).view(source.shape)
            part.copy_(source)
            self._streams.steps.copy(target, part)


def _default_streams(device: torch.device) -> Streams:
    copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return Streams(CudaStream(torch.cuda.default_stream(device)), CudaStream(copies))


def join_runs(parts: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """(first, first of the copy, size), with those in one that follow each other on both sides."""
    begin, copy, length = 0, 0, 0
    for here, there, size in parts:
        if length and (here, there) == (begin + length, copy + length):
            length += size
            continue
        if length:
            yield begin, copy, length
        begin, copy, length = here, there, size
    if length:
        yield begin, copy, length


def bits_of(tensor: torch.Tensor) -> Bits:
    """Of a tensor on the host, the same memory."""
    size = tensor.element_size()
    return tensor.view(torch.int32 if size == 4 else torch.int16).numpy().view(f"u{size}")
