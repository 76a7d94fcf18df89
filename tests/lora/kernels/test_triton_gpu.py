"""The CUDA kernels on a CUDA device."""

import pytest
import torch

from loraplex.lora.apply.apply import add_lora
from loraplex.lora.apply.batch import LoraBatch, PageTable
from loraplex.lora.kernels.cuda.one_launch import add_lora_at_once
from tests.lora.signatures import LINEARS

from .aligned_pages import align_pages
from .pages import random_table
from .test_add_lora import DTYPES, GROUPS, POPULARITY, REAL_SHAPES, SLOTS, TOLERANCE, expected, random_step

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
RANKS = (1, 8, 13, 64, 3, 17)
ODD_SHAPES = {kind: (1023, 2 * index + 131) for index, kind in enumerate(LINEARS)} | {"down_proj": (131, 1024)}


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def host_table(request: pytest.FixtureRequest) -> PageTable:
    return align_pages(random_table(REAL_SHAPES, [dict.fromkeys(LINEARS, rank) for rank in RANKS], 2, request.param))


def on_device(batch: LoraBatch, table: PageTable) -> LoraBatch:
    built = LoraBatch.build(table, batch.token_slot, batch.token_scale)
    assert built is not None
    return built


def close(result: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(result.double().cpu(), wanted, rtol=TOLERANCE[dtype], atol=20 * TOLERANCE[dtype])


@pytest.mark.parametrize("popularity", POPULARITY)
@pytest.mark.parametrize("tokens", [1, 40, 300])
@pytest.mark.parametrize("kinds", GROUPS, ids="+".join)
def test_equals_the_definition_bit_for_bit_each_time(
    host_table: PageTable, kinds: tuple[str, ...], tokens: int, popularity: str
) -> None:
    dtype = host_table.arena.dtype
    table = align_pages(host_table, "cuda")
    y, x, batch = random_step(host_table, kinds, POPULARITY[popularity](tokens), dtype)
    if batch is None:
        return
    results = []
    for _ in range(3):
        results.append(y.cuda())
        add_lora(results[-1], x.cuda(), on_device(batch, table), 1, kinds)
    close(results[0], expected(y, x, batch, 1, kinds), dtype)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("tokens", [1, 40, 300])
def test_one_launch_gives_the_same_bits_a_thousand_times(host_table: PageTable, tokens: int) -> None:
    if host_table.arena.dtype == torch.float32:
        return
    table, kinds = align_pages(host_table, "cuda"), GROUPS[0]
    y, x, batch = random_step(host_table, kinds, POPULARITY["distinct"](tokens), host_table.arena.dtype)
    assert batch is not None
    batch, wanted, x = on_device(batch, table), y.cuda(), x.cuda()
    add_lora(wanted, x, batch, 1, kinds)
    arrivals = torch.zeros(2, dtype=torch.int32, device="cuda")
    indices, widths = table.group(kinds)
    for _ in range(1000):
        result = y.cuda()
        chunks = batch.arrays.bound_chunks(tokens)
        add_lora_at_once(result, x, batch.arrays.tensors, arrivals, chunks, 1, indices, widths)
        assert torch.equal(result, wanted)
    assert not arrivals.any()


@pytest.mark.parametrize("kinds", GROUPS, ids="+".join)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_odd_shapes_and_activations_of_another_dtype(dtype: torch.dtype, kinds: tuple[str, ...]) -> None:
    host = align_pages(random_table(ODD_SHAPES, [dict.fromkeys(LINEARS, rank) for rank in RANKS], 1, dtype))
    for activations in DTYPES:
        y, x, batch = random_step(host, kinds, torch.arange(-1, SLOTS), activations)
        assert batch is not None
        result = y.cuda()
        add_lora(result, x.cuda(), on_device(batch, align_pages(host, "cuda")), 0, kinds)
        close(result, expected(y, x, batch, 0, kinds), activations)


def test_a_graph_captured_with_one_adapter_is_right_for_many_and_for_none(host_table: PageTable) -> None:
    from loraplex.lora.apply.step_buffers import StepBuffers

    dtype, kinds, tokens = host_table.arena.dtype, GROUPS[0], 48
    table = align_pages(host_table, "cuda")
    buffers = StepBuffers(table, tokens)
    y, x, one = random_step(host_table, kinds, POPULARITY["identical"](tokens), dtype)
    assert one is not None
    captured, values, batch = y.cuda(), x.cuda(), on_device(one, table)
    buffers.update(batch)
    batch.arrays = buffers
    add_lora(captured, values, batch, 0, kinds)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_lora(captured, values, batch, 0, kinds)
    for popularity in ("distinct", "skewed", "zipf", None, "identical"):
        slots = torch.full((tokens,), -1) if popularity is None else POPULARITY[popularity](tokens)
        step = LoraBatch.build(host_table, slots.to(torch.int32), torch.rand(tokens) + 0.5)
        buffers.update(step)
        captured.copy_(y)
        graph.replay()
        close(captured, y.double() if step is None else expected(y, x, step, 0, kinds), dtype)
