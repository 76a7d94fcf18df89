"""Captures on a device that is not here: torch.cuda's part is played by a graph that cannot be ended once it broke."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from loraplex.engine.cuda_stream import CudaCapture
from loraplex.engine.gpu_memory import no_room


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
