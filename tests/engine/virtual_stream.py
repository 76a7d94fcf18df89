"""A stream without a device: what is enqueued runs later, in order, and only as far as somebody waits for an event."""

import random
from collections import deque
from collections.abc import Callable
from functools import partial

import torch

from loraplex.engine.device.stream import Launch


class VirtualEvent:
    def __init__(self, stream: "VirtualStream", place: int) -> None:
        self._stream = stream
        self._place = place

    def synchronize(self) -> None:
        self._stream.run_to(self._place)

    def query(self) -> bool:
        return self._stream.has_run(self._place)


class VirtualStream:
    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._waiting: deque[Callable[[], None]] = deque()
        self._enqueued = 0
        self._recording: list[Callable[[], None]] | None = None

    def enqueue(self, work: Callable[[], None]) -> None:
        if self._recording is not None:
            self._recording.append(work)
            return
        self._waiting.append(work)
        self._enqueued += 1

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        assert destination.shape == source.shape
        self.enqueue(partial(destination.copy_, source))

    def record(self) -> VirtualEvent:
        assert self._recording is None
        return VirtualEvent(self, self._enqueued)

    def wait(self, event: VirtualEvent) -> None:
        self.enqueue(event.synchronize)

    def run_to(self, place: int) -> None:
        """At least so far; sometimes the device is ahead of what anyone has asked for."""
        place += self._source.choice((0, 0, 0, 1, 4, 99))
        while self._waiting and self._enqueued - len(self._waiting) < place:
            self._waiting.popleft()()

    def has_run(self, place: int) -> bool:
        return self._enqueued - len(self._waiting) >= place

    def capture(self, launch: Launch) -> "VirtualGraph":
        self._recording = recorded = []
        launch()
        self._recording = None
        return VirtualGraph(self, recorded)


class VirtualGraph:
    def __init__(self, stream: VirtualStream, recorded: list[Callable[[], None]]) -> None:
        self._stream = stream
        self._recorded = recorded

    def replay(self) -> None:
        for work in self._recorded:
            self._stream.enqueue(work)
