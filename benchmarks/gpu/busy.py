"""How much of the time the device computes: marks before and after each step that is submitted, no profiler."""

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from .figure import Stage
from .serving import Served


class Mark(Protocol):
    """A moment of the device."""

    def seconds_until(self, other: Any) -> float: ...


class CudaMark:
    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record()

    def seconds_until(self, other: "CudaMark") -> float:
        other.event.synchronize()
        return float(self.event.elapsed_time(other.event)) / 1000


class HostMark:
    """Where the host computes, its own time."""

    def __init__(self) -> None:
        self.moment = time.perf_counter()

    def seconds_until(self, other: "HostMark") -> float:
        return other.moment - self.moment


class MarkedRunner:
    """Passes steps on. What a step enqueues lies between two marks of its stream: an idle device reaches the first as
    it is set, a busy one when the step before has ended."""

    def __init__(self, runner: Any, mark: type[Mark]) -> None:
        self.depth: int = runner.depth
        self.spans: list[tuple[Mark, Mark]] = []
        self._runner = runner
        self._mark = mark

    def submit(self, plan: Any) -> Any:
        begin = self._mark()
        handle = self._runner.submit(plan)
        self.spans.append((begin, self._mark()))
        return handle


def busy_share(stage: Stage, served: Served, streams: int, context: int, steps: int) -> float:
    """Time within decode steps over all time, of `streams` streams."""
    core: Any = served.engine.core
    runner = core._in_flight._runner
    marked = MarkedRunner(runner, CudaMark if stage.device.type == "cuda" else HostMark)
    served.start(streams, context, steps)
    core._in_flight._runner = marked
    try:
        for _ in range(steps):
            served.step()
    finally:
        served.clear()
        core._in_flight._runner = runner
    return share(marked.spans[1:steps])


def share(spans: Sequence[tuple[Mark, Mark]]) -> float:
    """Of the time from the first mark to the last, what lies inside spans."""
    inside = sum(begin.seconds_until(end) for begin, end in spans)
    return inside / spans[0][0].seconds_until(spans[-1][1])
