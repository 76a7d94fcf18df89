"""Times of calls on a CUDA device: each side a CUDA graph, sides replayed in turn between events, medians."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import torch

from .errors import WrongResult

Call = Callable[[], object]
LEAST_MILLISECONDS: Final = 2.0
"""Of one measurement: the few microseconds between two graphs do not count beside it."""
IDLE_CYCLES: Final = 2_000_000
"""About a millisecond that the device spends while the host queues what is measured behind it."""


REPLAY_TOLERANCE: Final = 0.02
"""Of a replayed result beside the same call made at once, over the largest number: libraries may choose another way."""


PART: Final = 1 << 26
"""Numbers that are compared at a time."""


class Clock(Protocol):
    def seconds(self, sides: Mapping[str, Sequence[Call]]) -> dict[str, float]:
        """Seconds of one call of each side; a side's calls are the same work on other memory, made in turn, and give
        the same each time: a tensor, tensors of which the first is looked at, or None. Raises WrongResult."""


class GraphClock:
    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    # As the engine captures: torch 2.11 may keep one random state for all graphs alive, which is then of that mode.
    @torch.inference_mode()
    def seconds(self, sides: Mapping[str, Sequence[Call]]) -> dict[str, float]:
        graphs = {name: checked_graph(calls, _capture) for name, calls in sides.items()}
        replays = {}
        for name, graph in graphs.items():
            _milliseconds(graph, 1)
            replays[name] = 1 + int(LEAST_MILLISECONDS / max(_milliseconds(graph, 1), 1e-3))
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(self._rounds):
            for name, graph in graphs.items():
                times[name].append(_milliseconds(graph, replays[name]) / 1000 / len(sides[name]))
        return {name: statistics.median(values) for name, values in times.items()}


class Replayed(Protocol):
    def replay(self) -> None: ...


Graph = TypeVar("Graph", bound=Replayed)


def checked_graph(calls: Sequence[Call], capture: Callable[[Callable[[], None]], Graph]) -> Graph:
    """All calls as one graph, each of them made once before so that its kernels are compiled. Raises WrongResult unless
    a replay computes what the last of them gives: a graph that lacks launches would be a fast one."""
    for call in calls[:-1]:
        call()
    wanted = _first_tensor(calls[-1]())
    # The call may give the same memory each time.
    wanted = None if wanted is None else wanted.clone()
    results: list[object] = []

    def make_calls() -> None:
        for call in calls[:-1]:
            call()
        results.append(calls[-1]())

    graph = capture(make_calls)
    found = _first_tensor(results[-1])
    if wanted is not None and found is not None:
        _spoil(found)
        graph.replay()
        _require_alike(found, wanted)
    return graph


def _first_tensor(result: object) -> torch.Tensor | None:
    if isinstance(result, tuple):
        result = result[0]
    return result if isinstance(result, torch.Tensor) else None


def _spoil(tensor: torch.Tensor) -> None:
    """All bits set: NaN, or -1."""
    tensor.view(torch.uint8).fill_(0xFF)


def _require_alike(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Part by part: some results are a good share of a small card's memory."""
    pairs = [part.flatten().split(PART) for part in (found, wanted)]  # type: ignore[no-untyped-call]
    largest = max(float(part.float().abs().max()) for part in pairs[1])
    for one, other in zip(*pairs, strict=True):
        off = float((one.float() - other.float()).abs().max())
        if not off <= REPLAY_TOLERANCE * largest:
            raise WrongResult(f"a captured call is off by {off:.3g} from the same call, whose largest is {largest:.3g}")


def _capture(make_calls: Callable[[], None]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        make_calls()
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
