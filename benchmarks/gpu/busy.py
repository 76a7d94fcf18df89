"""How much of the time the device computes: marks before and after what each step makes it do, no profiler."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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


class Marked:
    """Calls of a method between two marks of the stream: an idle device reaches the first as it is set, a busy one when
    the step before has ended. So between them the host may do nothing but replay a graph, or an idle device that waits
    for the host would count as a busy one."""

    def __init__(self, call: Callable[..., Any], mark: Callable[[], Mark]) -> None:
        self.spans: list[tuple[Mark, Mark]] = []
        self._call = call
        self._mark = mark

    def __call__(self, *given: Any) -> Any:
        begin = self._mark()
        result = self._call(*given)
        self.spans.append((begin, self._mark()))
        return result


class MarkedGraphs:
    """In place of a runner's GraphPool."""

    def __init__(self, run: Marked) -> None:
        self.run = run


class MarkedRunner:
    """In place of a runner without graphs, which computes while it is called."""

    def __init__(self, depth: int, submit: Marked) -> None:
        self.depth = depth
        self.submit = submit


def busy_share(stage: Stage, served: Served, streams: int, context: int, steps: int) -> float:
    """Time within decode steps over all time, of `streams` streams. What goes to the device and comes back beside a
    captured step counts as idle."""
    core: Any = served.engine.core
    served.start(streams, context, steps)
    with marked(core._in_flight, CudaMark if stage.device.type == "cuda" else HostMark) as spans:
        for _ in range(steps):
            served.step()
    served.clear()
    return share(spans[1:steps])


@contextmanager
def marked(in_flight: Any, mark: Callable[[], Mark]) -> Iterator[list[tuple[Mark, Mark]]]:
    """Moments around each step that is submitted meanwhile."""
    runner = in_flight._runner
    if hasattr(runner, "graphs"):
        graphs = runner.graphs
        run = Marked(graphs.run, mark)
        runner.graphs = MarkedGraphs(run)
        try:
            yield run.spans
        finally:
            runner.graphs = graphs
        return
    submit = Marked(runner.submit, mark)
    in_flight._runner = MarkedRunner(runner.depth, submit)
    try:
        yield submit.spans
    finally:
        in_flight._runner = runner


def share(spans: Sequence[tuple[Mark, Mark]]) -> float:
    """Of the time from the first mark to the last, what lies inside spans."""
    inside = sum(begin.seconds_until(end) for begin, end in spans)
    return inside / spans[0][0].seconds_until(spans[-1][1])
