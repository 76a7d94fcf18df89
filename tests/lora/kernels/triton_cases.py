"""The CUDA kernels against the definition, in triton's interpreter: test_triton_interpreted.py runs this by itself.

The interpreter has no bfloat16 arithmetic: products of bfloat16 are taken in fp32 here. All else is as compiled: which
pages, ranks, rows and columns are read and written, how sums are split, the casts.
"""

from typing import Any

import pytest
import torch

from loraplex.lora.apply.apply import add_with_triton, lora_reference
from loraplex.lora.apply.batch import LoraBatch, PageTable
from loraplex.lora.apply.step_buffers import StepBuffers
from loraplex.lora.kernels.cuda.entry import StepTensors, add_lora, scale_outputs
from loraplex.lora.kernels.cuda.one_launch import add_lora_at_once
from tests.cards import use_processors
from tests.lora.signatures import LINEARS

from .aligned_pages import align_pages
from .pages import random_table
from .test_add_lora import DTYPES, GROUPS, POPULARITY, SHAPES, SLOTS, TOLERANCE, expected, random_step
from .test_vectors import expected as with_vectors
from .test_vectors import vector_table

RANKS = (1, 8, 13, 64, 75, 17)
TOKENS = 17
NAN = float("nan")


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def table(request: pytest.FixtureRequest) -> PageTable:
    return align_pages(random_table(SHAPES, [dict.fromkeys(LINEARS, rank) for rank in RANKS], 2, request.param))


def poisoned_buffers(table: PageTable, tokens: int) -> StepBuffers:
    """Whatever no kernel may use is NaN, or points far outside."""
    buffers = StepBuffers(table, tokens)
    buffers._host.fill_(1 << 30)
    buffers.tensors.intermediate.fill_(NAN)
    return buffers


def run(y: torch.Tensor, x: torch.Tensor, batch: LoraBatch, layer: int, kinds: tuple[str, ...]) -> torch.Tensor:
    """y plus the adapters' part, computed beside rows of NaN that belong to no token."""
    batch.arrays = poisoned_buffers(batch.table, len(x) + 3)
    batch.arrays.update(batch)
    result, values = (torch.cat([rows, torch.full_like(rows[:3], NAN)]) for rows in (y, x))
    add_with_triton(result, values, batch, layer, kinds)
    assert result[len(x) :].isnan().all()
    return result[: len(x)]


def check(y: torch.Tensor, x: torch.Tensor, batch: LoraBatch, layer: int, kinds: tuple[str, ...]) -> None:
    result = run(y, x, batch, layer, kinds)
    reference = y.clone()
    lora_reference(reference, x, batch, layer, kinds)
    tolerance = TOLERANCE[y.dtype]
    for wanted in (reference.double(), expected(y, x, batch, layer, kinds)):
        torch.testing.assert_close(result.double(), wanted, rtol=tolerance, atol=20 * tolerance)
    base = batch.token_slot[:, 0] < 0
    assert torch.equal(result[base], y[base])


@pytest.mark.parametrize("popularity", POPULARITY)
def test_equals_the_definition(table: PageTable, popularity: str) -> None:
    torch.manual_seed(1)
    y, x, batch = random_step(table, GROUPS[3], POPULARITY[popularity](TOKENS), table.arena.dtype)
    assert batch is not None
    check(y, x, batch, 1, GROUPS[3])


@pytest.mark.parametrize("kinds", GROUPS, ids="+".join)
def test_one_launch_gives_the_same_bits(
    table: PageTable, kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if table.arena.dtype == torch.float32:
        return
    torch.manual_seed(4)
    y, x, batch = random_step(table, kinds, POPULARITY["distinct"](TOKENS), table.arena.dtype)
    assert batch is not None
    two, arrivals = run(y, x, batch, 1, kinds), torch.zeros(2, dtype=torch.int32)

    def at_once(y: torch.Tensor, x: torch.Tensor, step: StepTensors, *where: Any) -> None:
        add_lora_at_once(y, x, step, arrivals, *where)

    monkeypatch.setattr("loraplex.lora.kernels.cuda.entry.add_lora", at_once)
    assert torch.equal(run(y, x, batch, 1, kinds), two) and not arrivals.any()


@pytest.mark.parametrize("processors", [2, 7, 99])
def test_however_many_programs_share_the_work(
    table: PageTable, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares that end within a member, and more programs than shares: the same bits."""
    torch.manual_seed(3)
    y, x, batch = random_step(table, GROUPS[2], POPULARITY["distinct"](TOKENS), table.arena.dtype)
    assert batch is not None
    alone = run(y, x, batch, 1, GROUPS[2])
    use_processors(monkeypatch, processors)
    assert torch.equal(run(y, x, batch, 1, GROUPS[2]), alone)


@pytest.mark.parametrize("kinds", GROUPS[:3], ids="+".join)
def test_every_group_with_activations_of_another_dtype(table: PageTable, kinds: tuple[str, ...]) -> None:
    dtype = torch.bfloat16 if table.arena.dtype == torch.float32 else torch.float32
    y, x, batch = random_step(table, kinds, torch.arange(2, SLOTS), dtype)
    assert batch is not None
    check(y, x, batch, 0, kinds)


def test_a_sum_of_adapters_is_a_launch_for_each_round(table: PageTable) -> None:
    torch.manual_seed(2)
    kinds, slots = GROUPS[0], torch.tensor([[4, 1], [1, 4], [-1, -1], [4, -1], [0, 1]], dtype=torch.int32)
    x, y = torch.randn(5, SHAPES[kinds[0]][0]), torch.randn(5, sum(SHAPES[kind][1] for kind in kinds))
    batch = LoraBatch.build(table, slots, torch.rand(5, 2) - 0.5)
    assert batch is not None and len(batch.rounds()) == 2
    result = y
    for part in batch.rounds():
        result = run(result, x, part, 1, kinds)
    torch.testing.assert_close(result.double(), expected(y, x, batch, 1, kinds), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("inputs", [1023, 1408])
def test_split_sums_and_several_blocks_of_columns(inputs: int) -> None:
    shapes = SHAPES | {"gate_proj": (inputs, 257), "up_proj": (inputs, 129)}
    table = align_pages(
        random_table(shapes, [dict.fromkeys(LINEARS[4:6], rank) for rank in (13, 40)], 1, torch.float16)
    )
    y, x, batch = random_step(table, GROUPS[2], torch.tensor([0, 1, -1, 1]), torch.float16)
    assert batch is not None
    check(y, x, batch, 0, GROUPS[2])


def test_a_sum_that_is_not_split() -> None:
    table = align_pages(random_table(SHAPES | {"o_proj": (600, 30)}, [{"o_proj": 5}], 1, torch.float32))
    slots = torch.full((257,), -1)
    slots[[0, 256]] = 0
    y, x, batch = random_step(table, ("o_proj",), slots, torch.float32)
    assert batch is not None
    check(y, x, batch, 0, ("o_proj",))


def test_modules_and_layers_that_an_adapter_leaves_alone_keep_their_bits() -> None:
    table = align_pages(random_table(SHAPES, [{"k_proj": 4}, {"q_proj": 9, "v_proj": 2}], 2, torch.bfloat16))
    table.rank[0, LINEARS.index("k_proj"), 1] = 0
    y, x, batch = random_step(table, GROUPS[0], torch.tensor([0, 1]), torch.bfloat16)
    assert batch is not None
    y[y == 0] = 1
    result = run(y, x, batch, 0, GROUPS[0])
    assert (result != y).any(1).all()
    assert torch.equal(result[0, :30], y[0, :30]) and torch.equal(result[0, 62:], y[0, 62:])
    assert torch.equal(result[1, 30:62], y[1, 30:62])
    assert torch.equal(run(y, x, batch, 1, GROUPS[0])[0], y[0])


def test_not_a_number_of_one_token_stays_there(table: PageTable) -> None:
    y, x, batch = random_step(table, ("o_proj",), torch.tensor([1, 1, 1, 5]), torch.float32)
    assert batch is not None
    x[2, 3] = NAN
    result = run(y, x, batch, 0, ("o_proj",))
    assert result[2].isnan().all()
    assert result[[0, 1, 3]].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gains_and_shifts_of_each_token(dtype: torch.dtype) -> None:
    """The shift as the request scales it."""
    table, slots, kinds = vector_table(dtype), [0, 1, 2, -1, 1, 0, *[2] * 17], GROUPS[0]
    scales, widths = torch.linspace(1.0, -0.5, len(slots)), tuple(table.shapes[kind][1] for kind in kinds)
    batch = LoraBatch.build(table, torch.tensor(slots, dtype=torch.int32), scales)
    assert batch is not None
    buffers = poisoned_buffers(table, len(slots))
    buffers.update(batch)
    y, indices = torch.randn(len(slots), sum(widths)).to(dtype), tuple(map(LINEARS.index, kinds))
    for layer in range(2):
        result, chunks = y.clone(), buffers.bound_chunks(len(slots))
        scale_outputs(result, buffers.tensors, table.floats, table.vectors, chunks, layer, indices, widths)
        wanted = with_vectors(y, table, slots, scales, layer)
        torch.testing.assert_close(result, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_launches_made_for_one_adapter_are_right_for_many_and_for_none() -> None:
    """What a CUDA graph replays: the same grid, addresses and numbers, over buffers that are updated in place."""
    table = align_pages(random_table(SHAPES, [dict.fromkeys(LINEARS, rank) for rank in RANKS], 1, torch.float16))
    buffers, kinds = poisoned_buffers(table, TOKENS), GROUPS[2]
    y, x, one = random_step(table, kinds, POPULARITY["identical"](TOKENS), torch.float16)
    before = y.clone()
    indices, widths = tuple(map(LINEARS.index, kinds)), tuple(table.shapes[kind][1] for kind in kinds)
    chunks = buffers.bound_chunks(TOKENS)
    for batch in (one, *(step(table, name) for name in ("distinct", "skewed")), None, one):
        buffers.update(batch)
        buffers.tensors.intermediate.fill_(NAN)
        y.copy_(before)
        add_lora(y, x, buffers.tensors, chunks, 0, indices, widths)
        wanted = before.double() if batch is None else expected(before, x, batch, 0, kinds)
        torch.testing.assert_close(y.double(), wanted, rtol=1e-3, atol=2e-2)
        assert batch is None or not torch.equal(y, before)


def step(table: PageTable, popularity: str) -> LoraBatch | None:
    return LoraBatch.build(table, POPULARITY[popularity](TOKENS).to(torch.int32), torch.rand(TOKENS) + 0.5)
