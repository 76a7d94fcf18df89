"""An engine with the kernels for CUDA on a machine without one: on CPU tensors, in triton's interpreter."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex import LLM
from loraplex.engine import cuda_stream, cuda_warmup, device, gpu_profile

from .inline_stream import InlineStream
from .paper_gauge import PaperGauge
from .recorded_graph import RecordedGraph

TINY: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What asks for a CUDA device gets the CPU, whose graphs are recorded; nothing is tried or warmed up."""
    queues = cuda_stream.Queues(InlineStream(), InlineStream(), RecordedGraph)
    monkeypatch.setattr(device, "find_cuda", lambda: torch.device("cpu"))
    monkeypatch.setattr(cuda_stream, "open_queues", lambda device: queues)
    monkeypatch.setattr(gpu_profile, "open_gauge", lambda device: PaperGauge())
    for steps in ("run_largest", "warm_up_cuda"):
        monkeypatch.setattr(cuda_warmup, steps, lambda *arguments: None)
    RecordedGraph.captured = RecordedGraph.replayed = 0
    yield


def open_llm(base: Path, adapters: dict[str, Path], **settings: Any) -> LLM:
    small = {"max_model_len": 64, "num_kv_blocks": 24, "adapter_memory": 1 << 20, "adapter_host_memory": 0}
    small |= {"max_num_seqs": 4, "max_num_batched_tokens": 24, "max_loaded_adapters": 3, "num_threads": 1}
    return LLM(base, adapters, **(small | {"device": "cuda"} | settings))
