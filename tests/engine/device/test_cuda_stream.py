"""Captures on a device that is not here: torch.cuda's part is played by a graph that cannot be ended once it broke."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from loraplex.engine.device.cuda_stream import CudaCapture, open_queues
from loraplex.engine.device.host_transfer import HostTransfer
from loraplex.engine.startup.gpu_memory import no_room
from loraplex.engine.startup.gpu_profile import GpuProfile, open_gauge
from loraplex.lora.residency.page_copier import PageCopier


class BrokenGraph:
    ended = 0

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"

    def capture_end(self) -> None:
        BrokenGraph.ended += 1
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> CudaCapture:
    stream = SimpleNamespace(wait_stream=lambda other: None, device=None)
    parts = {
        "CUDAGraph": BrokenGraph, "graph_pool_handle": lambda: (0, 1), "Stream": lambda device: stream,
        "current_stream": lambda device: stream, "stream": lambda chosen: nullcontext(),
    }  # fmt: skip
    for name, part in parts.items():
        monkeypatch.setattr(torch.cuda, name, part)
    BrokenGraph.ended = 0
    return CudaCapture(torch.device("cpu"))


def test_memory_that_runs_out_in_a_capture_says_what_to_change(capture: CudaCapture) -> None:
    def launch() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")

    words = r"as steps were captured.* lower max_num_seqs; .*\(CUDA out of memory. Tried to allocate 2.00 GiB.\)"
    with pytest.raises(ValueError, match=words), no_room("steps were captured", "lower max_num_seqs"):
        capture(launch)
    assert BrokenGraph.ended == 1
    with pytest.raises(torch.OutOfMemoryError):  # as a step's requests are told it
        capture(launch)


def test_a_capture_that_cannot_be_ended_is_an_error(capture: CudaCapture) -> None:
    with pytest.raises(RuntimeError, match="previous error during capture"):
        capture(lambda: None)


class NamedStream:
    """Notes what is enqueued on it, and where what waits for it was."""

    device = torch.device("cpu")
    log: tuple[list[str], ...] = ([],)
    current: "NamedStream"

    def __init__(self, device: torch.device | None = None) -> None:
        self.name = f"stream {len(NamedStream.log)}"
        NamedStream.log += (["new"],)

    def wait_event(self, event: "NamedEvent") -> None:
        NamedStream.log[0].append(f"{self.name} waits for {event.stream}")


class NamedEvent:
    stream = ""

    def __init__(self, enable_timing: bool = False) -> None:
        self.timed = enable_timing

    def record(self, stream: NamedStream | None = None) -> None:
        self.stream = (stream or NamedStream.current).name
        NamedStream.log[0].append(f"event of {self.stream}")

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        NamedStream.log[0].append(f"host waits for {self.stream}")

    def elapsed_time(self, later: "NamedEvent") -> float:
        assert self.timed and later.timed
        return 2.0


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of streams and events in the place of torch.cuda's."""

    @contextmanager
    def on(stream: NamedStream) -> Iterator[None]:
        before, NamedStream.current = NamedStream.current, stream
        NamedStream.log[0].append(f"on {stream.name}")
        yield
        NamedStream.current = before

    NamedStream.log = ([],)
    NamedStream.current = NamedStream()
    main = NamedStream.current
    parts = {
        "Stream": NamedStream, "Event": NamedEvent, "stream": on, "graph_pool_handle": lambda: (0, 1),
        "current_stream": lambda device: NamedStream.current, "default_stream": lambda device: main,
    }  # fmt: skip
    for name, part in parts.items():
        monkeypatch.setattr(torch.cuda, name, part)
    return NamedStream.log[0]


def test_results_leave_on_a_stream_that_waits_for_their_step_alone(log: list[str]) -> None:
    queues = open_queues(torch.device("cpu"))
    arrival = HostTransfer(queues.compute, queues.transfer).send(torch.arange(3))
    compute, transfer = "stream 1", "stream 2"
    assert log == [f"on {compute}", f"event of {compute}", f"{transfer} waits for {compute}", f"on {transfer}",
                   f"event of {transfer}"]  # fmt: skip
    assert arrival.wait().tolist() == [0, 1, 2] and log[-1] == f"host waits for {transfer}"
    begin, end = queues.mark(), queues.mark()
    assert end.reached() and begin.seconds_until(end) == pytest.approx(0.002) and log[-1] == f"event of {compute}"


def test_pages_come_on_a_stream_that_waits_for_the_steps_that_may_read_what_was_there(log: list[str]) -> None:
    carrier = PageCopier(torch.device("cuda"), None)
    carrier._pinned = False
    left, target = carrier.mark(), torch.zeros(2)
    carrier.carry([(target, torch.ones(2))], left)
    steps, copies = "stream 1", "stream 2"
    assert log == [f"event of {steps}", f"{copies} waits for {steps}", f"on {copies}", f"event of {copies}",
                   f"host waits for {copies}"]  # fmt: skip
    carrier.put(target, torch.full((2,), 3.0))
    assert log[5:] == [f"on {steps}"] and target.tolist() == [3.0, 3.0]


def test_a_card_is_measured_by_the_driver_and_torchs_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    figures = {"mem_get_info": (60, 100), "memory_reserved": 5, "max_memory_reserved": 12, "get_device_name": "a card"}
    for name, figure in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, name=name, figure=figure: calls.append(name) or figure)
    for name in ("synchronize", "reset_peak_memory_stats", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *device, name=name: calls.append(name))
    profile = GpuProfile(open_gauge(torch.device("cuda")), 0.5)
    assert calls == ["get_device_name", "synchronize", "empty_cache", "mem_get_info"]
    with profile.activations():
        pass
    seen = profile.seen(3)
    assert (seen.name, seen.total, seen.free, seen.activations, seen.graphs) == ("a card", 100, 60, 7, 3)
