"""How a GPU's memory is measured and split, on a card of paper."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from loraplex.engine.config import EngineConfig
from loraplex.engine.device import cuda_stream
from loraplex.engine.startup import gpu_profile
from loraplex.engine.startup.cuda_build import CudaBuilder
from loraplex.engine.startup.gpu_memory import MemorySplit, Seen, estimate_graphs, no_room, split_memory
from loraplex.engine.startup.gpu_profile import GpuProfile
from loraplex.engine.startup.kv_cache_size import block_bytes

from ..paper_gauge import GB, PaperGauge
from .test_kv_cache_size import MODEL

SEEN = Seen("a card", total=100 * GB, free=99 * GB, weights=16 * GB, activations=3 * GB, graphs=GB, graph_pool=2 * GB)
BLOCK = block_bytes(MODEL, 16, torch.bfloat16)


def split(seen: Seen = SEEN, dtype: torch.dtype = torch.bfloat16, **settings: Any) -> MemorySplit:
    return split_memory(EngineConfig(model="m", **settings), MODEL, seen, dtype)


def test_every_byte_that_is_allowed_has_an_owner() -> None:
    found = split(adapter_memory=10 * GB)
    assert (found.allowed, found.adapters) == (90 * GB, 10 * GB)
    assert found.cache.num_blocks == 58 * GB // BLOCK and 0 <= found.unused < BLOCK
    words = "weights 16.00 GB, activations 3.00 GB, CUDA graphs 1.00 GB, graph pool 2.00 GB, adapters 10.00 GB, KV "
    assert found.words.startswith(words)
    assert found.words.endswith(" GB; of 90.00 GB allowed, 100.00 GB in all")
    assert split(adapter_memory_share=0.1).adapters == 6.8 * GB
    assert split(gpu_memory_utilization=0.5, adapter_memory=10 * GB).cache.num_blocks == 18 * GB // BLOCK
    short = split(dtype=torch.float8_e4m3fn, adapter_memory=10 * GB)
    assert 1.7 < short.cache.num_blocks / found.cache.num_blocks < 2
    told = found.describe()
    assert (told.total, told.allowed, told.activations, told.graphs) == (100 * GB, 90 * GB, 3 * GB, GB)
    assert told.graph_pool == 2 * GB


def test_a_size_that_was_set_wins_and_must_fit() -> None:
    assert split(num_kv_blocks=7).cache.num_blocks == 7
    assert split(kv_cache_memory=10 * BLOCK + 1).cache.num_blocks == 10
    with pytest.raises(ValueError, match=r"needs 80\.00 GB, 12\.\d+ GB more.*lower kv_cache_memory \(frees up to 12"):
        split(kv_cache_memory=80 * GB)
    with pytest.raises(ValueError, match=r"needs 2 blocks, .* raise num_kv_blocks"):
        split(num_kv_blocks=1)


def test_too_little_says_what_took_how_much_and_what_would_help_most() -> None:
    tight = dataclasses.replace(SEEN, weights=80 * GB, activations=6 * GB, graphs=GB // 2, graph_pool=GB // 2)
    with pytest.raises(ValueError) as refused:
        split(tight, adapter_memory=8 * GB, max_num_batched_tokens=8192)
    message = str(refused.value)
    for part in (
        "of 100.00 GB", "0.9 allows 90.00 GB", "weights take 80.00 GB", "activations 6.00 GB", "CUDA graphs 0.50 GB",
        "graph pool 0.50 GB", "adapters 8.00 GB", "leaves -5.00 GB", "5.00 GB more",
    ):  # fmt: skip
        assert part in message
    remedies = message.partition("one or several of: ")[2].split("; ")
    assert remedies == [
        "set quantization to int4 (frees up to 57.14 GB)",
        "set quantization to fp8 (frees up to 40.00 GB)",
        "raise gpu_memory_utilization up to 0.98 (frees up to 8.00 GB)",
        "lower adapter_memory (frees up to 8.00 GB)",
        "lower max_num_batched_tokens, now 8192 (frees up to 6.00 GB)",
        "lower max_num_seqs, now 64 (frees up to 1.00 GB)",
    ]
    with pytest.raises(ValueError, match=r"lower adapter_memory_share, now 0\.5 \(frees up to 34\.00 GB\)"):
        split(kv_cache_memory=60 * GB, adapter_memory_share=0.5)
    with pytest.raises(ValueError) as refused:
        split(tight, adapter_memory=0, num_kv_blocks=4 * GB // BLOCK, quantization="int4")
    assert "kv_cache_dtype to fp8_e4m3 (frees up to 2.00 GB)" in str(refused.value)
    assert "set quantization" not in str(refused.value)


@pytest.mark.parametrize("utilization", [0.0, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(utilization: float) -> None:
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        split(gpu_memory_utilization=utilization)


def test_a_profile_tells_what_stays_from_what_a_step_takes() -> None:
    gauge = PaperGauge(others=2 * GB)
    profile = GpuProfile(gauge, 0.9)
    with profile.weights():
        gauge.take(20 * GB)
        gauge.give_back(4 * GB)
        gauge.others += GB
    with profile.activations():
        gauge.take(5 * GB)
        gauge.give_back(5 * GB)
        gauge.take(2 * GB)
        gauge.others += GB // 2
    with profile.graph_pool():
        gauge.take(3 * GB)
        gauge.give_back(3 * GB)
    before = profile.taken()
    gauge.take(GB)
    gauge.others += GB
    gauge.cached = 4 * GB
    assert profile.taken() - before == 2 * GB, "without what torch only keeps"
    seen = profile.seen(estimate_graphs(captured=20, layers=32))
    assert (seen.total, seen.free) == (100 * GB, 98 * GB)
    assert seen.weights == 17 * GB, "with what libraries took, without what torch only kept"
    assert seen.activations == 7 * GB + GB // 2, "blocks that were freed and not reused count while the step runs"
    assert seen.graphs == 20 * 32 * 400_000
    assert seen.graph_pool == 3 * GB and seen.fixed == seen.weights + seen.activations + seen.graphs + 3 * GB


def test_a_card_that_others_hold_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ValueError, match=r"other processes hold 40\.00 GB.*gpu_memory_utilization to 0\.6 or less"):
        GpuProfile(PaperGauge(others=40 * GB), 0.9)
    GpuProfile(PaperGauge(others=40 * GB), 0.6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_num_batched_tokens": 1 << 20}, r"max_num_batched_tokens is 1,048,576; .* 1,044,720 tokens .* is 256"),
        ({"max_num_seqs": 70_000, "max_loaded_adapters": 66_000}, r"max_num_seqs is 70,000; .* have 65,535 tokens"),
    ],
)
def test_a_step_that_no_grid_holds_is_refused_before_anything_is_loaded(
    settings: dict[str, int], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_profile, "open_gauge", lambda device: PaperGauge())
    monkeypatch.setattr(cuda_stream, "open_queues", lambda device: None)
    device: Any = SimpleNamespace(device=torch.device("cpu"))
    with pytest.raises(ValueError, match=words):
        CudaBuilder(EngineConfig(model="m", **settings), device)
    CudaBuilder(EngineConfig(model="m", max_num_batched_tokens=1_044_720), device)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("4 GB"), RuntimeError("Triton Error [CUDA]: out of memory")])
def test_memory_that_runs_out_at_the_start_names_what_to_change(error: RuntimeError) -> None:
    words = r"out of memory as it was tried\. .* one or several of: lower this; end other"
    with pytest.raises(ValueError, match=words), no_room("it was tried", "lower this"):
        raise error
    with pytest.raises(ValueError, match=words), no_room("it was tried", "lower this"):
        try:
            raise error
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    with pytest.raises(RuntimeError, match="another"), no_room("it was tried"):
        raise RuntimeError("another")
