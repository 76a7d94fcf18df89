"""The CUDA attention on a CUDA device, at sizes of real models."""

from dataclasses import replace

import pytest
import torch

from loraplex.engine.attention.backend import Rotary
from loraplex.engine.attention.eight_bits import LARGEST

from .paged_cases import fill_both, make_backends, on_device, pad, widen_table
from .test_cpu import make_batch, random

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
BLOCKS = 2048
UNUSED = 159
"""The block that tables point to where they have no other; here a sequence may have it, and none is read for it."""
STEPS = {
    "decodes": [(0, 1), (15, 1), (1023, 1), (9000, 1), *[(index * 7, 1) for index in range(40)]],
    "one decode": [(20000, 1)],
    "mixed": [(0, 1), (40, 5), (0, 700), (2700, 300), (6000, 1)],
    "prefill": [(0, 2048)],
}
MODELS = {"8B": (32, 8, 128), "0.5B": (14, 2, 64), "heads of 80": (32, 32, 80), "heads of 256": (16, 8, 256)}
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("cache", [torch.bfloat16, torch.float16, *LARGEST], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_equals_the_reference_bit_for_bit_each_time(model: str, cache: torch.dtype, step: str) -> None:
    heads, kv_heads, size = MODELS[model]
    dtype = torch.bfloat16 if cache.itemsize == 1 else cache
    for window, cap in ((None, None), (1000, 30.0)):
        backends = make_backends(
            (heads, kv_heads), size, 16, cache, window=window, soft_cap=cap, num_blocks=BLOCKS, device="cuda"
        )
        batch = fill_both(*backends, STEPS[step], blocks=BLOCKS)
        query = random(len(batch.positions), heads, size, dtype=dtype).cuda()
        expected = backends[1].attend(0, query, batch)
        for uneven in (False, True):
            batch = replace(batch, uneven=uneven)
            actual = backends[0].attend(0, query, batch)
            torch.testing.assert_close(actual, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
            for _ in range(3):
                assert torch.equal(backends[0].attend(0, query, batch), actual)


@pytest.mark.parametrize("cache", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_a_captured_graph_replays_right_with_longer_contexts(cache: torch.dtype) -> None:
    backends = make_backends((32, 8), 128, 16, cache, num_blocks=BLOCKS, device="cuda")
    captured = widen_table(fill_both(*backends, [(index, 1) for index in range(8)], blocks=BLOCKS), BLOCKS)
    query = random(8, 32, 128, dtype=torch.bfloat16).cuda()
    backends[0].attend(0, query, captured)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = backends[0].attend(0, query, captured)
    for sequences in ([(4000, 1)] * 8, [(9000, 1), (3, 1), (255, 1)], [(0, 1)] * 6):
        batch = fill_both(*backends, sequences, blocks=BLOCKS)
        tokens = len(batch.positions)
        wanted = pad(batch, 0, 8 - len(sequences), 8 - tokens)
        captured.query_starts.copy_(wanted.query_starts)
        captured.context_lengths.copy_(wanted.context_lengths)
        captured.block_tables[: len(sequences), : batch.block_tables.shape[1]] = batch.block_tables
        graph.replay()
        expected = backends[1].attend(0, query[:tokens], batch)
        torch.testing.assert_close(output[:tokens], expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("cache", [torch.bfloat16, *LARGEST], ids=str)
@pytest.mark.parametrize("tokens", [1, 64, 3000])
def test_rotating_and_writing_is_what_attention_reads(tokens: int, cache: torch.dtype) -> None:
    backends = make_backends((32, 8), 128, 16, cache, num_blocks=BLOCKS, device="cuda")
    angles = random(tokens, 64).cuda()
    rotary = Rotary(angles.cos(), angles.sin(), random(128, seed=5).cuda(), random(128, seed=6).cuda())
    batch = on_device(make_batch([(0, tokens)], blocks=BLOCKS), "cuda")
    qkv = random(tokens, 48 * 128, dtype=torch.bfloat16).cuda()
    actual, expected = (backend.rotate_and_write(0, qkv, rotary, batch) for backend in backends)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
    attended, wanted = (backend.attend(0, expected, batch) for backend in backends)
    tolerance = {torch.float8_e5m2: 0.3, torch.float8_e4m3fn: 0.15}.get(cache, 3e-2)
    torch.testing.assert_close(attended, wanted, rtol=tolerance, atol=tolerance)


def test_nothing_waits_for_the_device() -> None:
    cuda, _ = make_backends((32, 8), 128, 16, torch.float8_e4m3fn, num_blocks=BLOCKS, device="cuda")
    angles = random(16, 64).cuda()
    batch = on_device(make_batch([(index, 1) for index in range(16)], blocks=BLOCKS), "cuda")
    batch = replace(batch, positions=torch.arange(16, device="cuda"))
    qkv, rotary = random(16, 48 * 128, dtype=torch.bfloat16).cuda(), Rotary(angles.cos(), angles.sin())
    torch.cuda.set_sync_debug_mode("error")
    try:
        cuda.attend(0, cuda.rotate_and_write(0, qkv, rotary, batch), batch)
        cuda.copy_blocks([(1, 2), (3, 4)])
    finally:
        torch.cuda.set_sync_debug_mode("default")
