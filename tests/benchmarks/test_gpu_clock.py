"""The benchmark's clock, marks and card on a device of paper, whose time passes as graphs are replayed."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu.busy import CudaMark, share
from benchmarks.gpu.card import describe
from benchmarks.gpu.clock import GraphClock
from tests.engine.recorded_graph import Recording, Work


class PaperGraph:
    """Each of its operations takes a millisecond."""

    milliseconds = 0.0
    """Of the device's clock."""

    def __init__(self) -> None:
        self.work: Work = []

    def replay(self) -> None:
        for operation in self.work:
            operation()
        PaperGraph.milliseconds += len(self.work)


class PaperEvent:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.moment = float("nan")

    def record(self) -> None:
        self.moment = PaperGraph.milliseconds

    def synchronize(self) -> None:
        """It has come."""

    def elapsed_time(self, later: "PaperEvent") -> float:
        return later.moment - self.moment


@contextmanager
def capture(graph: PaperGraph) -> Iterator[None]:
    with Recording(graph.work):
        yield


@pytest.fixture(autouse=True)
def paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", PaperGraph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "Event", PaperEvent)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)


def test_a_side_takes_what_one_of_its_calls_takes_in_a_graph() -> None:
    memory = torch.zeros(4)
    sides = {
        "one": [lambda: memory.fill_(2.0)],
        "two": [lambda: memory.fill_(1.0), lambda: memory.fill_(2.0).add_(0.0).add_(0.0)],
    }
    assert GraphClock(3).seconds(sides) == pytest.approx({"one": 0.001, "two": 0.002})


def test_graphs_are_captured_and_replayed_in_the_mode_of_the_engines_beside_them() -> None:
    modes, memory = set[bool](), torch.zeros(4)

    def call() -> torch.Tensor:
        modes.add(torch.is_inference_mode_enabled())
        return memory.fill_(1.0)

    assert GraphClock(1).seconds({"one": [call]}) == pytest.approx({"one": 0.001})
    assert modes == {True} and not torch.is_inference_mode_enabled()


def test_the_busy_share_is_told_by_events_of_the_device() -> None:
    marks = []
    for milliseconds in (0, 3, 4, 5, 5, 7):
        PaperGraph.milliseconds = milliseconds
        marks.append(CudaMark())
    assert share(list(zip(marks[::2], marks[1::2], strict=True))) == pytest.approx((3 + 1 + 2) / 7)


def test_the_card_is_told_with_the_versions_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(name="a card", major=9, minor=0, total_memory=1 << 37, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    told = describe(torch.device("cuda"))
    assert (told["card"], told["compute_capability"], told["torch"]) == ("a card", "9.0", torch.__version__)
    assert told["multiprocessors"] == 132 and told["memory_bytes"] == 1 << 37 and told["triton"] and "cuda" in told
