"""Times of calls on a CUDA device: each side a CUDA graph, sides replayed in turn between events, medians."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import torch

Call = Callable[[], object]
LEAST_MILLISECONDS: Final = 2.0
"""Of one measurement: the few microseconds between two graphs do not count beside it."""
IDLE_CYCLES: Final = 2_000_000
"""About a millisecond that the device spends while the host queues what is measured behind it."""


class Clock(Protocol):
    def seconds(self, sides: Mapping[str, Sequence[Call]]) -> dict[str, float]:
        """Seconds of one call of each side; a side's calls are the same work on other memory, made in turn."""


class GraphClock:
    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def seconds(self, sides: Mapping[str, Sequence[Call]]) -> dict[str, float]:
        graphs = {name: _capture(calls) for name, calls in sides.items()}
        replays = {}
        for name, graph in graphs.items():
            _milliseconds(graph, 1)
            replays[name] = 1 + int(LEAST_MILLISECONDS / max(_milliseconds(graph, 1), 1e-3))
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(self._rounds):
            for name, graph in graphs.items():
                times[name].append(_milliseconds(graph, replays[name]) / 1000 / len(sides[name]))
        return {name: statistics.median(values) for name, values in times.items()}


def _capture(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """All calls, each of them made once before so that its kernels are compiled."""
    for call in calls:
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def _milliseconds(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    """Of one replay."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(IDLE_CYCLES)  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / replays
