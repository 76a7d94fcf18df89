"""Streams, events and graphs of torch.cuda, as stream.py has them."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch

from loraplex.lora.residency.page_copier import CudaStream

from .device_time import Moment
from .stream import Capture, Graph, Launch, Stream


class CudaCapture:
    """Graphs that share one pool of memory: they never run beside each other."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = _new_stream(device)

    def __call__(self, launch: Launch) -> Graph:
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            # Adapters may be loading on another thread: its calls are none of this capture's.
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                launch()
            except BaseException:
                # What broke the launch counts, and not that there is no capture to end.
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph


class CudaMoment:
    """On the current stream."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record()

    def reached(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def seconds_until(self, later: "CudaMoment") -> float:
        return float(self._event.elapsed_time(later._event)) / 1000


@dataclass(frozen=True, slots=True)
class Queues:
    """What the engine thread enqueues its work on."""

    compute: Stream
    """Torch's current stream of that thread, on which every launch goes."""
    transfer: Stream
    """To the host."""
    capture: Capture
    mark: Callable[[], Moment]
    """On `compute`."""


def open_queues(device: torch.device) -> Queues:
    """The same stream for all: adapters are published on it too."""
    compute = CudaStream(torch.cuda.current_stream(device))
    return Queues(compute, CudaStream(_new_stream(device)), CudaCapture(device), CudaMoment)


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
