"""What layers with experts launch on CUDA, in triton's interpreter: test_triton_interpreted.py runs this by itself.

Against the references of the CPU's kernels, and float64. What launchers allocate is NaN.
"""

from collections.abc import Callable

import pytest
import torch

from loraplex.engine.kernels.cuda.experts.rows import group_rows
from loraplex.engine.kernels.cuda.experts.sums import add_shared
from loraplex.engine.model.description.feed_forward import RoutingSpec
from loraplex.engine.model.experts.device_rows import DeviceRows, group_experts
from loraplex.engine.model.kernels.routing import route_reference, sum_experts_reference
from loraplex.engine.model.operations.cuda import OPERATIONS, SCORES
from loraplex.lora.apply.apply import lora_reference, vectors_reference
from loraplex.lora.apply.batch import LoraBatch, PageTable
from loraplex.lora.apply.step_buffers import StepBuffers
from loraplex.lora.kernels.cuda.entry import add_lora, scale_outputs
from loraplex.quant.kernels.cuda.exact import multiply_exact
from loraplex.quant.linears.cuda_experts import CudaExperts
from loraplex.quant.linears.cuda_packed import CudaPackedLinear
from loraplex.quant.linears.scaled_input import ScaledInputLinear
from loraplex.quant.linears.torch_linear import TorchLinear
from loraplex.quant.weights.weights import CodedWeight
from tests.lora.kernels.aligned_pages import align_pages
from tests.lora.kernels.pages import random_table
from tests.lora.signatures import LINEARS
from tests.quant.kernels.weights import random_float4, random_float8, random_integers
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

from .test_expert_lora import EXPERTS, INPUTS, LAYER, LAYERS, OUTPUTS, POPULARITY, RANKS, ROUTING
from .test_routing import CASES, drawn, routing

__all__ = ["one_patch_a_module", "poisoned_memory", "rounding"]
KERNELS = OPERATIONS.experts
every_case = pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.scores}-{case.num_experts}-{case.num_groups}"
)


@every_case
def test_choices_and_weights_are_those_of_torch(case: RoutingSpec) -> None:
    logits, correction = drawn(case)
    experts, weights = KERNELS.route(logits, correction, None, case)
    arguments = SCORES[case.scores], case.experts_per_token, case.normalizes, case.scale
    wanted, exact = route_reference(
        logits.double(), correction.double(), *arguments, case.num_groups, case.groups_per_token
    )
    assert torch.equal(experts.long(), wanted)
    torch.testing.assert_close(weights.double(), exact, rtol=3e-6, atol=1e-7)
    factors = torch.rand(case.num_experts) + 0.5
    same, scaled = KERNELS.route(logits, correction, factors, case)
    assert torch.equal(same, experts) and torch.equal(scaled, weights * factors[wanted])


@every_case
def test_logits_that_are_no_numbers_go_to_experts_that_there_are(case: RoutingSpec) -> None:
    logits, correction = drawn(case, tokens=4)
    logits[1], logits[2, ::2], logits[3] = float("nan"), float("nan"), float("-inf")
    experts, _ = KERNELS.route(logits, correction, None, case)
    for own in experts.tolist():
        assert len(set(own)) == len(own) and all(0 <= expert < case.num_experts for expert in own)


@pytest.mark.parametrize(("experts", "inputs"), [(1, 40), (7, 130), (40, 300)])
def test_a_router_gives_a_row_the_same_bits_alone_and_among_others(experts: int, inputs: int) -> None:
    x, weight, bias = torch.randn(37, inputs), torch.randn(experts, inputs), torch.randn(experts)
    together = multiply_exact(x, weight, bias)
    torch.testing.assert_close(together.double(), x.double() @ weight.double().T + bias.double(), rtol=1e-6, atol=1e-5)
    for row in (0, 15, 16, 36):
        assert torch.equal(multiply_exact(x[row : row + 1].clone(), weight, bias)[0], together[row])
    assert multiply_exact(x[:0], weight, None).shape == (0, experts)


KEYS: dict[str, Callable[[], torch.Tensor]] = {
    "one": lambda: torch.tensor([3]),
    "alike": lambda: torch.full((150,), 2),
    "some have none": lambda: torch.randint(-3, 9, (130,)),
    "none has any": lambda: torch.full((70,), -1),
    "many": lambda: torch.randint(0, 300, (200,)),
}


@pytest.mark.parametrize("most", [8, 16, 64])
@pytest.mark.parametrize("name", KEYS)
def test_rows_lie_by_their_keys_in_pieces(name: str, most: int) -> None:
    torch.manual_seed(0)
    keys = KEYS[name]()
    rows = group_rows(keys.int(), most, len(keys) + 3)
    alive = (keys >= 0).nonzero()[:, 0]
    order = alive[keys[alive].argsort(stable=True)]
    assert rows.pairs[: len(order)].tolist() == order.tolist()
    assert rows.places[order].tolist() == list(range(len(order))) and bool((rows.places[keys < 0] == -1).all())
    wanted = list[list[int]]()
    for row, pair in enumerate(order.tolist()):
        if wanted and wanted[-1][0] == keys[pair] and wanted[-1][2] < most:
            wanted[-1][2] += 1
        else:
            wanted.append([int(keys[pair]), row, 1])
    assert rows.pieces[: len(wanted)].tolist() == wanted
    assert bool((rows.pieces[len(wanted) :, 0] == -1).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_are_in_the_order_of_a_tokens_experts(dtype: torch.dtype) -> None:
    case = routing(9, 4, "softmax")
    experts, weights = KERNELS.route(*drawn(case, 21), None, case)
    rows = group_experts(experts, 9)
    y, shared, gate = torch.randn(84, 1030).to(dtype), torch.randn(21, 1030).to(dtype), torch.randn(21, 1)
    found = KERNELS.add_up(y, rows, weights)
    wanted = sum_experts_reference(y.double(), rows.places.view(21, 4).long(), weights.double())
    tolerance = {"rtol": 2**-7, "atol": 1e-6} if dtype == torch.bfloat16 else {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(found, wanted.to(dtype), **tolerance)
    for given, factor in ((gate, torch.sigmoid(gate)), (None, 1.0)):
        total = found.clone()
        add_shared(total, shared, given)
        torch.testing.assert_close(total, (found.float() + factor * shared.float()).to(dtype), **tolerance)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def table(request: pytest.FixtureRequest) -> PageTable:
    """NaN lies between the pages. Slot 1 has vectors on two linears, slot 0 on one that has no ranks."""
    table = align_pages(random_table(dict.fromkeys(LINEARS, (INPUTS, OUTPUTS)), RANKS, LAYERS, request.param))
    size, drawn = LAYERS * 2 * OUTPUTS, torch.Generator().manual_seed(2)
    gap = torch.full((-len(table.arena) % 64,), float("nan")).to(table.arena.dtype)
    first = (len(table.arena) + len(gap)) * table.arena.itemsize // 4
    vectors = torch.randn(3 * size, generator=drawn)
    table.arena = torch.cat([table.arena, gap, vectors.view(table.arena.dtype)])
    for place, (slot, kind) in enumerate(((1, "k_proj"), (1, "gate_proj"), (0, "up_proj"))):
        table.vectors[slot, LINEARS.index(kind)] = first + place * size
    return table


def add(
    table: PageTable, rows: DeviceRows, y: torch.Tensor, x: torch.Tensor, batch: LoraBatch, by_token: bool
) -> torch.Tensor:
    """y with what the adapters of the batch add to each row."""
    tokens = len(batch.token_slot)
    rounds = [StepBuffers(table, tokens + 2) for _ in batch.rounds()]
    for buffers, single in zip(rounds, batch.rounds(), strict=True):
        buffers.update(single)
    kinds = torch.tensor([table.group(group).rows for group in EXPERTS], dtype=torch.int32)
    lists = [rows._list(table, own.slots, own.factors, kinds, LAYER) for own in rounds]
    y, widths, on = y.clone(), (OUTPUTS, OUTPUTS), rows.on_experts(kinds, by_token)
    for step in lists:
        add_lora(y, x, step, len(step.chunks), LAYER, (), widths, on)
    for step in lists:
        scale_outputs(y, step, table.floats, table.vectors, len(step.chunks), LAYER, (), widths, on)
    return y


@pytest.mark.parametrize("routed", ROUTING)
@pytest.mark.parametrize("popularity", POPULARITY)
@pytest.mark.parametrize("tokens", [1, 23])
def test_rows_get_what_their_adapters_add_to_their_expert(
    table: PageTable, routed: str, popularity: str, tokens: int
) -> None:
    torch.manual_seed(tokens)
    dtype, slots = table.arena.dtype, POPULARITY[popularity](tokens).int()
    experts, scale = ROUTING[routed](tokens).int(), torch.rand(slots.shape) + 0.5
    rows = group_experts(experts, len(EXPERTS))
    count = experts.numel()
    x, y = torch.randn(tokens, INPUTS).to(dtype), torch.randn(count, 2 * OUTPUTS).to(dtype)
    batch = LoraBatch.build(table, slots, scale)
    if batch is None:
        return
    source = rows.grouped.pairs.long() // experts.shape[1]
    wanted, expert_of = y.double(), experts.view(-1)[rows.grouped.pairs.long()]
    for expert, group in enumerate(EXPERTS):
        own = (expert_of == expert).nonzero()[:, 0]
        single = LoraBatch.build(table, slots[source[own]], scale[source[own]]) if len(own) else None
        if single is not None:
            part = wanted[own]
            lora_reference(part, x[source[own]], single, LAYER, group)
            vectors_reference(part, single, LAYER, group)
            wanted[own] = part
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 2**-6}[dtype]
    for by_token, values in ((True, x), (False, x[source])):
        found = add(table, rows, y, values, batch, by_token)
        torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=20 * tolerance)
    untouched = (wanted == y.double()).all(1)
    assert torch.equal(found[untouched], y[untouched])


WEIGHTS: dict[str, Callable[[int], list[CodedWeight]]] = {
    "int4 g128": lambda seed: [random_integers(70, 256, 4, 2, symmetric=seed == 2, seed=seed)],
    "int4 g32 and int8": lambda seed: [
        random_integers(64, 96, 4, 3, seed=seed), random_integers(33, 96, 8, 3, seed=seed + 9)
    ],
    "int8 per channel": lambda seed: [random_integers(66, 131, 8, 1, seed=seed)],
    "float8 blocks": lambda seed: [random_float8(140, 300, (128, 128), seed=seed)],
    "float8 per channel": lambda seed: [random_float8(65, 64, (1, 64), seed=seed)],
    "mxfp4": lambda seed: [random_float4(65, 96, seed=seed)],
}  # fmt: skip
"""The parts of a linear of an expert, by its number."""


SPREAD: dict[str, Callable[[int], torch.Tensor]] = {
    "even": lambda tokens: torch.stack([torch.randperm(5)[:2] for _ in range(tokens)]),
    "one has all": lambda tokens: torch.full((tokens, 1), 3),
}


def check_products(
    method: CudaExperts, dense: list[torch.Tensor], biases: list[torch.Tensor | None], dtype: torch.dtype
) -> None:
    """Both ways in which rows come, at every size of a piece; dense [E] float64."""
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2**-8}[dtype]
    for spread, tokens in (("even", 1), ("even", 7), ("one has all", 9), ("even", 60), ("one has all", 130)):
        experts = SPREAD[spread](tokens).int()
        rows = group_experts(experts, len(dense))
        pairs = rows.grouped.pairs.long()
        x = torch.randn(tokens, dense[0].shape[1]).to(dtype)
        source, owner = pairs // experts.shape[1], experts.view(-1)[pairs].tolist()
        wanted = torch.stack(
            [
                x[token].double() @ dense[expert].T + (0 if (own := biases[expert]) is None else own.double())
                for token, expert in zip(source.tolist(), owner, strict=True)
            ]
        )
        for by_token, values in ((True, x), (False, x[source])):
            found = method.apply(values, rows.grouped, by_token=by_token)
            torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=20 * tolerance)


@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_products_of_codes_are_the_definition(name: str, has_bias: bool) -> None:
    torch.manual_seed(1)
    methods, dense, biases = [], [], list[torch.Tensor | None]()
    for expert in range(5):
        parts = WEIGHTS[name](expert)
        outputs, inputs = tuple(part.shape[0] for part in parts), parts[0].shape[1]
        method = CudaPackedLinear(inputs, outputs, torch.bfloat16)
        given = [torch.randn(size).bfloat16() if has_bias and expert != 1 else None for size in outputs]
        for place, part in enumerate(parts):
            method.load(place, part, given[place])
        method.finish()
        methods.append(method)
        dense.append(torch.cat([part.dequantized() for part in parts]).double())
        found = [bias for bias in given if bias is not None]
        biases.append(torch.cat(found) if found else None)
    check_products(CudaExperts(methods), dense, biases, torch.bfloat16)


def test_inputs_that_awq_scaled_are_divided_for_each_expert() -> None:
    torch.manual_seed(1)
    methods, dense = [], []
    for expert in range(5):
        weight, scales = random_integers(70, 256, 4, 2, seed=expert), torch.exp2(torch.randint(-3, 4, (256,)).float())
        method = ScaledInputLinear(CudaPackedLinear(256, (70,), torch.bfloat16), scales)
        method.load(0, weight, None)
        method.finish()
        methods.append(method)
        dense.append((weight.dequantized() / scales).double())
    check_products(CudaExperts(methods), dense, [None] * 5, torch.bfloat16)
    with pytest.raises(ValueError, match="some of whose inputs AWQ scaled"):
        CudaExperts([methods[0], methods[1].method])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_of_floats_are_the_definition(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    methods, dense, biases = [], [], list[torch.Tensor | None]()
    for expert in range(5):
        weight, bias = torch.randn(70, 150).to(dtype) / 12, torch.randn(70).to(dtype)
        method = TorchLinear(150, (70,), dtype)
        method.load(0, weight, bias if expert else None)
        method.finish()
        methods.append(method)
        dense.append(weight.double())
        biases.append(bias if expert else None)
    check_products(CudaExperts(methods), dense, biases, dtype)


def packed(*weights: CodedWeight) -> list[CudaPackedLinear]:
    methods = [CudaPackedLinear(weight.shape[1], (weight.shape[0],), torch.bfloat16) for weight in weights]
    for method, weight in zip(methods, weights, strict=True):
        method.load(0, weight, None)
        method.finish()
    return methods


def test_what_no_kernel_takes_is_refused() -> None:
    plain, ordered = random_integers(64, 128, 4, 4), random_integers(64, 128, 4, 4, ordered=False)
    floats = TorchLinear(128, (64,), torch.bfloat16)
    with pytest.raises(ValueError, match="activation order"):
        CudaExperts(packed(plain, ordered))
    with pytest.raises(ValueError, match="quantized in different ways"):
        CudaExperts(packed(plain, random_integers(64, 128, 8, 4)))
    with pytest.raises(ValueError, match="quantized in different ways"):
        CudaExperts(packed(random_integers(64, 128, 4, 4), random_float4(64, 128)))
    with pytest.raises(ValueError, match="stored in different ways"):
        CudaExperts([*packed(plain), floats])
