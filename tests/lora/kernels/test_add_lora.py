"""add_lora against the formula in float64, by how popular each adapter is, rank, shape and dtype."""

from collections.abc import Callable

import pytest
import torch

from loraplex.lora.apply.apply import add_lora, lora_reference
from loraplex.lora.apply.batch import RANKS_PER_PAGE, LoraBatch, PageTable
from loraplex.lora.kernels.amx.registers import HAS_MATRIX
from loraplex.lora.kernels.vector_code import HAS_BFLOAT16
from tests.lora.signatures import LINEARS

from .pages import random_table

SLOTS = 6
RANKS = (1, 3, 8, 16, 33, 64)
SHAPES = {kind: (70, 2 * index + 30) for index, kind in enumerate(LINEARS)} | {"down_proj": (131, 70)}
REAL_SHAPES = {
    "q_proj": (896, 896), "k_proj": (896, 128), "v_proj": (896, 128), "o_proj": (896, 896),
    "gate_proj": (896, 4864), "up_proj": (896, 4864), "down_proj": (4864, 896),
}  # fmt: skip
GROUPS = [("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)]
POPULARITY: dict[str, Callable[[int], torch.Tensor]] = {
    "distinct": lambda tokens: torch.arange(tokens) % SLOTS,
    "uniform": lambda tokens: torch.randint(-1, SLOTS, (tokens,)),
    "zipf": lambda tokens: torch.multinomial(torch.arange(1, SLOTS + 1).float() ** -1.5, tokens, True),
    "identical": lambda tokens: torch.full((tokens,), 4),
    "skewed": lambda tokens: torch.where(torch.arange(tokens) == tokens // 2, 2, -1),
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def table(request: pytest.FixtureRequest) -> PageTable:
    return random_table(SHAPES, [dict.fromkeys(LINEARS, rank) for rank in RANKS], 2, request.param)


def activations(table: PageTable, tokens: int, kind: str) -> torch.Tensor:
    """Float32 that the kernel reads as it is: beside adapters in bfloat16 it may round to that."""
    x = torch.randn(tokens, table.shapes[kind][0])
    return x.bfloat16().float() if table.arena.dtype == torch.bfloat16 else x


def random_step(
    table: PageTable, kinds: tuple[str, ...], slots: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, LoraBatch | None]:
    """y, x and the batch of tokens with these slots."""
    x = activations(table, len(slots), kinds[0]).to(dtype)
    y = torch.randn(len(slots), sum(table.shapes[kind][1] for kind in kinds)).to(dtype)
    return y, x, LoraBatch.build(table, slots.to(torch.int32), torch.rand(len(slots)) + 0.5)


def expected(y: torch.Tensor, x: torch.Tensor, batch: LoraBatch, layer: int, kinds: tuple[str, ...]) -> torch.Tensor:
    """The definition in float64: A and B put together rank by rank, then one token after the other."""
    result, weights = y.double(), {}
    pairs = [(token, place) for token, slots in enumerate(batch.token_slot.tolist()) for place in range(len(slots))]
    for token, place in pairs:
        slot, first = int(batch.token_slot[token, place]), 0
        for kind in kinds if slot >= 0 else ():
            if (slot, kind) not in weights:
                weights[slot, kind] = unpaged(batch.table, slot, layer, kind)
            a, b = weights[slot, kind]
            factor = (
                batch.table.scaling[slot, LINEARS.index(kind), layer].double()
                * batch.token_scale[token, place].double()
            )
            result[token, first : first + b.shape[1]] += factor * (a @ x[token].double()) @ b
            first += b.shape[1]
    return result


def unpaged(table: PageTable, slot: int, layer: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A [rank, in] and B [rank, out] of one module."""
    index, (inputs, outputs) = LINEARS.index(kind), table.shapes[kind]
    a, b = [torch.empty(0, inputs)], [torch.empty(0, outputs)]
    for rank in range(int(table.rank[slot, index, layer])):
        page, row = divmod(rank, RANKS_PER_PAGE)
        start = int(table.offset[slot, index, page]) + layer * RANKS_PER_PAGE * (inputs + outputs)
        a.append(table.arena[start + row * inputs :][None, :inputs])
        b.append(table.arena[start + RANKS_PER_PAGE * inputs + row * outputs :][None, :outputs])
    return torch.cat(a).double(), torch.cat(b).double()


def test_each_token_of_a_mixed_batch_gets_its_own_row() -> None:
    """The first to say so where rows or adapters are mixed up: one dtype, so that few kernels are compiled anew."""
    torch.manual_seed(0)
    kinds = ("q_proj", "k_proj", "v_proj")
    small = random_table(SHAPES, [dict.fromkeys(kinds, rank) for rank in RANKS], 1, torch.float32)
    slots = torch.tensor([4, 0, -1, 4, 2, 4, 4, 1, 4, 5, 4, 3, 2, 4, 5])
    y, x, batch = random_step(small, kinds, slots, torch.float32)
    assert batch is not None
    result = y.clone()
    add_lora(result, x, batch, 0, kinds)
    distance = (result.double() - expected(y, x, batch, 0, kinds)).abs().amax(1)
    assert (distance > 1e-3).nonzero().flatten().tolist() == [], "tokens that got another's row or adapter"


@pytest.mark.parametrize("popularity", POPULARITY)
@pytest.mark.parametrize("tokens", [1, 2, 7, 61])
@pytest.mark.parametrize("kinds", GROUPS, ids="+".join)
def test_equals_the_definition(table: PageTable, kinds: tuple[str, ...], tokens: int, popularity: str) -> None:
    torch.manual_seed(tokens)
    for dtype in (torch.float32, table.arena.dtype):
        y, x, batch = random_step(table, kinds, POPULARITY[popularity](tokens), dtype)
        if batch is None:
            continue
        for layer in (0, 1):
            wanted = expected(y, x, batch, layer, kinds)
            for function in (add_lora, lora_reference):
                result = y.clone()
                function(result, x, batch, layer, kinds)
                tolerance = TOLERANCE[dtype]
                torch.testing.assert_close(result.double(), wanted, rtol=tolerance, atol=20 * tolerance)


@pytest.mark.parametrize("kinds", GROUPS, ids="+".join)
def test_several_adapters_of_a_token_are_summed(table: PageTable, kinds: tuple[str, ...]) -> None:
    """Up to three for each token, the same ones in other places, some tokens with none."""
    torch.manual_seed(1)
    slots = torch.stack([torch.randperm(SLOTS)[:3] for _ in range(61)])
    slots[torch.rand(61) < 0.5, 2] = -1
    slots[slots[:, 2] < 0, 1] = torch.where(torch.rand(int((slots[:, 2] < 0).sum())) < 0.5, 1, -1)
    slots[7] = -1
    slots[slots[:, 0] == slots[:, 1], 1] = -1
    x, y = activations(table, 61, kinds[0]), torch.randn(61, sum(SHAPES[kind][1] for kind in kinds))
    batch = LoraBatch.build(table, slots.to(torch.int32), torch.rand(61, 3) - 0.5)
    assert batch is not None and len(batch.round_starts) == 4
    wanted = expected(y, x, batch, 1, kinds)
    for function in (add_lora, lora_reference):
        result = y.clone()
        function(result, x, batch, 1, kinds)
        torch.testing.assert_close(result.double(), wanted, rtol=2e-5, atol=4e-4)
    for token in range(61):
        alone = y[token : token + 1].clone()
        one = LoraBatch.build(table, batch.token_slot[token : token + 1], batch.token_scale[token : token + 1])
        if one is not None:
            add_lora(alone, x[token : token + 1], one, 1, kinds)
        again = y.clone()
        add_lora(again, x, batch, 1, kinds)
        assert torch.equal(alone[0], again[token]), token


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_real_shapes(dtype: torch.dtype) -> None:
    table = random_table(REAL_SHAPES, [dict.fromkeys(LINEARS, rank) for rank in (16, 5)], 1, dtype)
    for kinds in GROUPS:
        y, x, batch = random_step(table, kinds, torch.tensor([0, 1, 0, -1, 1, 0]), torch.float32)
        assert batch is not None
        wanted = expected(y, x, batch, 0, kinds)
        add_lora(y, x, batch, 0, kinds)
        torch.testing.assert_close(y.double(), wanted, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("kinds", GROUPS, ids="+".join)
def test_activations_are_rounded_where_products_are_of_bfloat16(table: PageTable, kinds: tuple[str, ...]) -> None:
    """To nearest, as the base's linears round them there, and nowhere else."""
    x = torch.randn(7, SHAPES[kinds[0]][0])
    results = []
    for given in (x, x.bfloat16().float()):
        y = torch.zeros(7, sum(SHAPES[kind][1] for kind in kinds))
        batch = LoraBatch.build(table, (torch.arange(7) % SLOTS).to(torch.int32), torch.ones(7))
        assert batch is not None
        add_lora(y, given, batch, 0, kinds)
        results.append(y)
    assert torch.equal(*results) == ((HAS_BFLOAT16 or HAS_MATRIX) and table.arena.dtype == torch.bfloat16)


def test_a_token_is_the_same_bits_whatever_its_neighbours(table: PageTable) -> None:
    kinds = GROUPS[0]
    slots = torch.randint(-1, SLOTS, (64,))
    y, x, together = random_step(table, kinds, slots, torch.float32)
    assert together is not None
    scale = together.token_scale[:, 0]
    batched = y.clone()
    add_lora(batched, x, together, 1, kinds)
    for token in range(64):
        alone = y[token : token + 1].clone()
        batch = LoraBatch.build(table, slots[token : token + 1].to(torch.int32), scale[token : token + 1])
        if batch is not None:
            add_lora(alone, x[token : token + 1], batch, 1, kinds)
        assert torch.equal(alone[0], batched[token]), token


@pytest.mark.parametrize("inputs", [611, 1024, 1130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_prompts_beside_single_tokens(dtype: torch.dtype, inputs: int) -> None:
    """Prompts long enough for matrix registers, tokens of one adapter that do not follow each other, ends of all of
    them that fill no register: as the definition has it, and the bits of each token alone."""
    kinds = GROUPS[0]
    widths = {"q_proj": 150, "k_proj": 70, "v_proj": 7}
    table = random_table(
        {kind: (inputs, width) for kind, width in widths.items()},
        [dict.fromkeys(kinds, rank) for rank in RANKS],
        2,
        dtype,
    )
    lengths = [(4, 83), (0, 17), (-1, 5), (1, 16), (5, 33), (3, 64)]
    runs = [torch.full((length,), slot) for slot, length in lengths]
    slots = torch.cat([*runs, torch.arange(50) % 2 * 4, torch.full((20,), 4)])
    y, x, together = random_step(table, kinds, slots, torch.float32)
    assert together is not None
    batched = y.clone()
    add_lora(batched, x, together, 1, kinds)
    torch.testing.assert_close(batched.double(), expected(y, x, together, 1, kinds), rtol=2e-5, atol=2e-3)
    scale = together.token_scale[:, 0]
    for token in range(len(slots)):
        alone = y[token : token + 1].clone()
        batch = LoraBatch.build(table, slots[token : token + 1].to(torch.int32), scale[token : token + 1])
        if batch is not None:
            add_lora(alone, x[token : token + 1], batch, 1, kinds)
        assert torch.equal(alone[0], batched[token]), token


def test_untargeted_kinds_and_base_tokens_keep_their_bits() -> None:
    table = random_table(SHAPES, [{"k_proj": 4}, {"q_proj": 9, "v_proj": 2}], 1, torch.bfloat16)
    kinds = GROUPS[0]
    y, x, batch = random_step(table, kinds, torch.tensor([0, -1, 1]), torch.float32)
    assert batch is not None
    before = y.clone()
    add_lora(y, x, batch, 0, kinds)
    q, k, v = (slice(0, 30), slice(30, 62), slice(62, 96))
    assert torch.equal(y[1], before[1])
    assert torch.equal(y[0, q], before[0, q]) and torch.equal(y[0, v], before[0, v])
    assert torch.equal(y[2, k], before[2, k])
    assert not torch.equal(y[0, k], before[0, k]) and not torch.equal(y[2, v], before[2, v])


def test_ranks_that_differ_by_layer() -> None:
    table = random_table(SHAPES, [dict.fromkeys(LINEARS, 12)], 2, torch.float32)
    table.rank[0, LINEARS.index("o_proj"), 0] = 0
    y, x, batch = random_step(table, ("o_proj",), torch.tensor([0, 0]), torch.float32)
    assert batch is not None
    before = y.clone()
    add_lora(y, x, batch, 0, ("o_proj",))
    assert torch.equal(y, before)
    wanted = expected(y, x, batch, 1, ("o_proj",))
    add_lora(y, x, batch, 1, ("o_proj",))
    torch.testing.assert_close(y.double(), wanted, rtol=2e-5, atol=2e-4)


def test_not_a_number_of_one_token_stays_there(table: PageTable) -> None:
    y, x, batch = random_step(table, ("o_proj",), torch.tensor([1, 1, 1, 1, 5]), torch.float32)
    assert batch is not None
    x[2, 3] = float("nan")
    add_lora(y, x, batch, 0, ("o_proj",))
    assert y[2].isnan().all()
    assert y[[0, 1, 3, 4]].isfinite().all()


def test_bfloat16_output_rounds_to_even_and_keeps_infinity() -> None:
    table = random_table(SHAPES, [dict.fromkeys(LINEARS, 1)], 1, torch.bfloat16)
    y, x, batch = random_step(table, ("o_proj",), torch.tensor([0, 0]), torch.bfloat16)
    assert batch is not None
    y[1, 0], y[1, 1] = float("inf"), float("nan")
    wanted = expected(y, x, batch, 0, ("o_proj",)).to(torch.bfloat16)
    add_lora(y, x, batch, 0, ("o_proj",))
    torch.testing.assert_close(y, wanted, rtol=0.004, atol=1e-6, equal_nan=True)
    assert (y[0] == wanted[0]).float().mean() > 0.95
