"""The engine's small CUDA kernels and CudaSampler on a CUDA device, at real sizes."""

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from loraplex.engine.kernels.norm import rms_norm_reference
from loraplex.engine.kernels.silu import silu_multiply_reference

from .sampling_rows import check, make_row, random_row

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
TOLERANCE = {torch.float16: 2**-10, torch.bfloat16: 2**-7}
FLOAT8 = torch.cuda.get_device_capability() >= (8, 9)
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@every_dtype
@pytest.mark.parametrize("size", [896, 4096, 8192, 4097])
@pytest.mark.parametrize("tokens", [1, 17, 2048])
def test_norm_and_gate(tokens: int, size: int, dtype: torch.dtype) -> None:
    from loraplex.engine.kernels.cuda import gate, norm
    from loraplex.quant.kernels.cuda.cast import cast_rows

    x, residual, weight = (torch.randn(shape, device=CUDA).to(dtype) for shape in ((tokens, size),) * 2 + ((size,),))
    total, again = residual + x, residual.clone()
    normed = norm.add_rms_norm(x, residual, weight, 1e-5)
    tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    assert torch.equal(residual, total)
    torch.testing.assert_close(normed, rms_norm_reference(total, weight, 1e-5), **tolerance)
    gate_up = torch.randn(tokens, 2 * size, device=CUDA).to(dtype)
    product = gate.multiply_gate(gate_up)
    torch.testing.assert_close(product, silu_multiply_reference(gate_up), **tolerance)
    if FLOAT8:
        pairs = (normed, norm.add_rms_norm_cast(x, again, weight, 1e-5)), (product, gate.multiply_gate_cast(gate_up))
        for plain, (result, values, scales) in pairs:
            expected, expected_scales = cast_rows(result)
            assert torch.equal(result, plain) and torch.equal(scales, expected_scales)
            assert torch.equal(values.view(torch.uint8), expected.view(torch.uint8))


@every_dtype
def test_embedding(dtype: torch.dtype) -> None:
    from loraplex.engine.kernels.cuda.embedding import gather_rows

    table, ids = torch.randn(151936, 896, device=CUDA).to(dtype), torch.randint(-9, 151945, (3000,), device=CUDA)
    known = (ids >= 0) & (ids < len(table))
    expected = F.embedding(ids.clamp(0, len(table) - 1), table) * known[:, None]
    assert torch.equal(gather_rows(ids, table, dtype), expected)


def test_placeholders() -> None:
    from loraplex.engine.kernels.cuda.placeholders import resolve, resolve_reference

    drawn, sources = torch.randint(-1, 1 << 20, (64,)).int().to(CUDA), torch.randint(-1, 64, (3000,)).int().to(CUDA)
    one, other = torch.arange(3000, device=CUDA), torch.arange(3000, device=CUDA)
    resolve(one, sources, drawn)
    resolve_reference(other, sources, drawn)
    assert torch.equal(one, other)


def make_sampler(rows: int, vocabulary: int) -> Any:
    from loraplex.engine.device.cuda_stream import open_queues
    from loraplex.engine.device.host_transfer import HostTransfer
    from loraplex.engine.sampling.cuda.sampler import CudaSampler

    queues = open_queues(CUDA)
    return CudaSampler(rows, vocabulary, CUDA, HostTransfer(queues.compute, queues.transfer))


@pytest.mark.parametrize("vocabulary", [1000, 32001, 128256, 151936])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_kind_of_row_is_sampled_as_on_the_cpu(vocabulary: int, dtype: torch.dtype) -> None:
    choose, sampler, count = random.Random(vocabulary), make_sampler(64, vocabulary), 64
    for step in range(8):
        rows = [random_row(choose, vocabulary) for _ in range(count)]
        logits = (torch.randn(count, vocabulary) * (0.3, 3.0)[step % 2]).to(dtype)
        assert check(sampler.sample(logits.to(CUDA), rows).wait(), logits, rows) <= 2


def test_a_captured_graph_replays_right_with_other_rows() -> None:
    choose, vocabulary = random.Random(1), 32000
    sampler, logits = make_sampler(16, vocabulary), torch.randn(16, vocabulary, device=CUDA) * 3
    sampler.sample(logits, [make_row(top_p=0.9, logprobs=3)]).wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampler.launch(logits)
    for count in (16, 3, 0, 9):
        rows = [random_row(choose, vocabulary) for _ in range(count)]
        logits.copy_(torch.randn(16, vocabulary))
        sampler.upload(sampler.prepare(rows).records)
        graph.replay()
        check(sampler.fetch([row.logprobs for row in rows]).wait(), logits[:count].cpu(), rows)


def test_a_step_is_launched_without_waiting_for_the_device() -> None:
    sampler, logits = make_sampler(4, 32000), torch.randn(4, 32000, device=CUDA)
    rows = [make_row(seed, top_p=0.9, frequency_penalty=1.0, logit_bias={3: 1.0}, logprobs=5) for seed in range(4)]
    sampler.sample(logits, rows).wait()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for row in rows:
            row.position += 1
        pending = sampler.sample(logits, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert pending.wait().failed == []
