"""A CUDA device's double: what asks for one gets the CPU, where kernels run in triton's interpreter."""

import pytest
import torch
from triton.runtime.jit import JITFunction

from loraplex.engine.device import cuda_stream, device
from loraplex.engine.startup import cuda_warmup, gpu_profile

from .inline_stream import HostMoment, InlineStream
from .paper_gauge import PaperGauge
from .recorded_graph import RecordedGraph


def pretend_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are recorded; nothing is tried or warmed up as an engine starts."""
    queues = cuda_stream.Queues(InlineStream(), InlineStream(), RecordedGraph, HostMoment)
    monkeypatch.setattr(JITFunction, "run", JITFunction.run)  # what an engine puts there goes with the test
    monkeypatch.setattr(device, "find_cuda", lambda: torch.device("cpu"))
    monkeypatch.setattr(cuda_stream, "open_queues", lambda device: queues)
    monkeypatch.setattr(gpu_profile, "open_gauge", lambda device: PaperGauge())
    for steps in ("run_largest", "run_largest_captured", "warm_up_cuda"):
        monkeypatch.setattr(cuda_warmup, steps, lambda *arguments: None)
    RecordedGraph.captured = RecordedGraph.replayed = 0
