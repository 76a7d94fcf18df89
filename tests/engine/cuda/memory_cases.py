"""A card's memory is measured and split as the engine starts, or it says what to change."""

from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex.engine.attention.cuda import CudaAttention
from loraplex.engine.model.decoder import Decoder
from loraplex.engine.model.decoder_loader import DecoderLoader
from loraplex.engine.runner import cuda_runner
from loraplex.engine.runner.cuda_runner import CudaRunner
from loraplex.engine.runner.step_sizes import finest_sizes
from loraplex.engine.startup import cuda_warmup, gpu_profile
from tests.engine.cuda_engine import cuda, open_llm
from tests.engine.paper_gauge import PaperGauge
from tests.engine.recorded_graph import RecordedGraph
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

from .requests import adapters, base, prompts

__all__ = ["adapters", "base", "cuda", "one_patch_a_module", "poisoned_memory", "prompts", "rounding"]
pytestmark = pytest.mark.usefixtures("cuda")

WARM_UP, RUN_LARGEST = cuda_warmup.warm_up_cuda, cuda_warmup.run_largest
RUN_LARGEST_CAPTURED = cuda_warmup.run_largest_captured


MB = 10**6


def test_a_card_is_measured_and_split_as_the_engine_starts(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights as the load takes them, the largest step as it runs; adapters get their share of the rest, and the KV
    cache what remains. No rule of the host's memory is asked."""
    gauge, counts, judged = PaperGauge(total=50 * MB), [], list[int]()
    load, submit, end = DecoderLoader.load, CudaRunner.submit, Decoder.end

    def loading(loader: DecoderLoader, longest: int) -> Decoder:
        gauge.take(8 * MB)
        gauge.give_back(3 * MB)
        return load(loader, longest)

    def submitting(runner: CudaRunner, plan: Any) -> Any:
        counts.append([item.count for item in plan.scheduled])
        gauge.take(2 * MB)
        handle = submit(runner, plan)
        gauge.give_back(2 * MB)
        return handle

    def ending(decoder: Decoder, *parts: Any) -> torch.Tensor:
        logits = end(decoder, *parts)
        judged.append(len(logits))
        return logits

    monkeypatch.setattr(gpu_profile, "open_gauge", lambda device: gauge)
    monkeypatch.setattr(cuda_warmup, "run_largest", RUN_LARGEST)
    monkeypatch.setattr(cuda_warmup, "run_largest_captured", RUN_LARGEST_CAPTURED)
    monkeypatch.setattr(cuda_runner, "MOST_JUDGED", 4)
    monkeypatch.setattr(Decoder, "end", ending)
    monkeypatch.setattr(DecoderLoader, "load", loading)
    monkeypatch.setattr(CudaRunner, "submit", submitting)
    settings = {"num_kv_blocks": None, "adapter_memory_share": 0.25, "max_num_seqs": 2, "max_num_batched_tokens": 8}
    with open_llm(base, {}, **settings) as llm:
        assert counts == [[8], [7, 1], [8], [1, 1]], "the largest steps, before there is a cache"
        assert RecordedGraph.captured == 0
        assert judged == [4, 3, 1, 4, 2, 2, 2, 2], "logits of a prompt's tokens some at a time, then of those to draw"
        graphs = finest_sizes(2, 8).captured * 2 * 400_000
        info, left = llm.info, 45 * MB - 5 * MB - 4 * MB - 4 * MB - graphs
        assert info.device_memory is not None
        assert (info.device_memory.total, info.device_memory.allowed) == (50 * MB, 45 * MB)
        assert (info.device_memory.activations, info.device_memory.graphs) == (4 * MB, graphs)
        assert info.device_memory.graph_pool == 4 * MB
        assert info.adapter_memory == left // 4
        assert info.num_blocks + 1 == (left - left // 4) // (2 * 2 * 16 * 2 * 16 * 4)
        engine = llm.llm_engine.engine
        assert engine.cache.cache_bytes() == info.kv_cache_bytes == (info.num_blocks + 1) * 2 * 2 * 16 * 2 * 16 * 4
        assert 0 <= info.adapter_memory - engine.adapters.table.arena.nbytes < 128


@pytest.mark.parametrize(
    ("owner", "part", "words"),
    [
        (DecoderLoader, "load", "as the weights were loaded.* set quantization to int4 or fp8"),
        (cuda_warmup, "run_largest", "as its largest steps were tried.* lower max_num_batched_tokens, now 24; low"),
        (CudaAttention, "copy_blocks", "as steps were captured.* lower gpu_memory_utilization, now 0.9; lower max_num"),
    ],
)
def test_a_card_that_is_too_small_says_what_to_change(
    owner: Any, part: str, words: str, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(owner, part, fail)
    monkeypatch.setattr(cuda_warmup, "warm_up_cuda", lambda runner, *rest: runner.cache.copy_blocks([(0, 0)]))
    with pytest.raises(ValueError, match=words):
        open_llm(base, {})


def test_memory_that_runs_out_in_a_capture_says_what_to_change(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(cuda_warmup, "warm_up_cuda", WARM_UP)
    monkeypatch.setattr(RecordedGraph, "__init__", fail)
    words = "as steps were captured.* lower gpu_memory_utilization, now 0.9; lower max_num_seqs, now 1;"
    with pytest.raises(ValueError, match=words):
        open_llm(base, {}, max_num_seqs=1, max_num_batched_tokens=4)


def test_a_card_without_room_for_the_cache_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_profile, "open_gauge", lambda device: PaperGauge(total=15 * MB))
    with pytest.raises(ValueError, match=r"a card has too little memory .* CUDA graphs 0\.01 GB.* lower max_num_seqs"):
        open_llm(base, {})
