"""Layers with experts: decode steps beside the bytes of the experts that they touch, prompts beside the card's product,
and adapters on experts beside none. Router, routing, grouping, both products, the gate and the sum are in the time."""

import copy
from functools import lru_cache, partial
from typing import Final, NamedTuple

import torch

from loraplex.engine.batch import Batch
from loraplex.engine.model.description.feed_forward import LinearSpec, RoutingSpec
from loraplex.engine.model.experts.layer import Experts
from loraplex.engine.model.linear import LoraLinear
from loraplex.engine.model.operations.operations import cuda_operations
from loraplex.lora.apply.batch import RANKS_PER_PAGE, Extras, LoraBatch, PageTable
from loraplex.lora.apply.step_buffers import StepAdapters, StepBuffers
from loraplex.lora.kernels.cuda.tiles import ALIGNMENT_BYTES
from loraplex.quant.linears.cuda_exact import CudaExactLinear
from loraplex.quant.linears.cuda_packed import CudaPackedLinear
from loraplex.quant.linears.scheme import LinearMethod
from loraplex.quant.linears.torch_linear import TorchLinear
from loraplex.quant.weights.weights import CodedWeight
from tests.quant.kernels.weights import random_float4, random_float8, random_integers

from .card import copy_rate, product_rate
from .figure import TOLERANCE, Figure, Stage, require_call
from .shapes import Mixture
from .size import Size

DECODE_GOAL: Final = 0.75
ADAPTERS_GOAL: Final = 1.15
GATE, UP, DOWN, ROUTER = "gate_proj", "up_proj", "down_proj", "gate"
WEIGHT: Final = 0.05
"""Standard deviation of adapters' weights."""
CHECKED: Final = 8
"""Tokens by which a layer is judged before it is timed."""


class Layer(NamedTuple):
    layer: Experts
    dense: list[tuple[torch.Tensor, torch.Tensor]]
    """[E] of gate_up [2 I, C] and down [C, I], float32, on the host."""


def figures(size: Size) -> list[Figure]:
    found = []
    for mixture in size.mixtures:
        for stored in mixture.stored:
            what = f"experts of {mixture.name}, {stored}"
            found += [
                Figure(
                    f"{what}: decode of {tokens} tokens: bytes of the experts touched a second / copy", "x",
                    DECODE_GOAL, partial(decode_share, mixture, stored, tokens),
                )
                for tokens in size.mixture_decodes
            ]  # fmt: skip
            prompts = f"{what}: prompts of {size.mixture_prompts} tokens: operations a second / bfloat16 product"
            found.append(Figure(prompts, "x", None, partial(prompt_share, mixture, stored)))
        adapted = f"experts of {mixture.name}: {size.crowd} tokens with {size.few_adapters} adapters on all experts"
        what, measure = f"{adapted}, r={size.rank}: time / without", partial(time_beside_base, mixture)
        found.append(Figure(what, "x", ADAPTERS_GOAL, measure, at_least=False))
    return found


def decode_share(mixture: Mixture, stored: str, tokens: int, stage: Stage) -> float:
    """Each call has tokens of its own, so that experts come from memory."""
    made = checked(stage, mixture, stored)
    each = made.layer.inputs.linears[0].method.weight_bytes() + made.layer.outputs.linears[0].method.weight_bytes()
    steps = [stage.random(tokens, mixture.hidden) for _ in range(stage.copies(each * mixture.per_token) + 1)]
    touched = [len(set(_experts(made.layer, x).flatten().tolist())) for x in steps]
    taken = stage.clock.seconds({"layer": [partial(run, made.layer, x, None) for x in steps]})["layer"]
    return each * sum(touched) / len(steps) / taken / copy_rate(stage)


def prompt_share(mixture: Mixture, stored: str, stage: Stage) -> float:
    made, tokens = checked(stage, mixture, stored), stage.size.mixture_prompts
    x = stage.random(tokens, mixture.hidden)
    taken = stage.clock.seconds({"layer": [partial(run, made.layer, x, None)]})["layer"]
    operations = 2 * tokens * mixture.per_token * 3 * mixture.hidden * mixture.inner
    return operations / taken / product_rate(stage)


def time_beside_base(mixture: Mixture, stage: Stage) -> float:
    made, tokens = checked(stage, mixture, mixture.stored[0]), stage.size.crowd
    batch = make_batch(stage, mixture, stage.size.few_adapters, tokens)
    x = stage.random(tokens, mixture.hidden)
    wanted = reference(made, x, batch)
    require_call(lambda: run(made.layer, x, batch), wanted.to(x.device), 2 * TOLERANCE)
    steps = [stage.random(tokens, mixture.hidden) for _ in range(3)]
    taken = stage.clock.seconds(
        {
            "base": [partial(run, made.layer, step, None) for step in steps],
            "adapted": [partial(run, made.layer, step, batch) for step in steps],
        }
    )
    return taken["adapted"] / taken["base"]


def run(layer: Experts, x: torch.Tensor, lora: LoraBatch | None) -> torch.Tensor:
    none = torch.empty(0, dtype=torch.int64, device=x.device)
    return layer.apply(x, None, Batch(none, none, none, none, none, none[:, None], none, lora=lora))


def checked(stage: Stage, mixture: Mixture, stored: str) -> Layer:
    """Raises WrongResult unless the layer gives what float32 gives for the same experts."""
    made = make_layer(stage, mixture, stored)
    x = stage.random(CHECKED, mixture.hidden)
    require_call(lambda: run(made.layer, x, None), reference(made, x, None).to(x.device), TOLERANCE)
    return made


@lru_cache(maxsize=1)
def make_layer(stage: Stage, mixture: Mixture, stored: str) -> Layer:
    """All experts have one of a few weights, each in memory of its own."""
    size, operations = stage.size, cuda_operations()
    router = CudaExactLinear(mixture.hidden, (mixture.experts,), stage.device)
    router.load(0, torch.randn(mixture.experts, mixture.hidden), None)
    router.finish()
    shapes = ((2 * mixture.inner, mixture.hidden), (mixture.hidden, mixture.inner))
    few = [[_method(stage, stored, *shape, seed) for shape in shapes] for seed in range(3)]
    linears: tuple[list[LoraLinear], ...] = ([], [])
    for expert in range(mixture.experts):
        for place, kinds in enumerate(((GATE, UP), (DOWN,))):
            method = copy.deepcopy(few[expert % len(few)][place][0])
            if place == 0:
                method.out_features = (mixture.inner, mixture.inner)
            linears[place].append(LoraLinear(method, 0, tuple(f"{expert}.{kind}" for kind in kinds), operations))
    inputs, outputs = operations.experts.linears(*linears)
    routing = RoutingSpec(
        router=LinearSpec("gate", mixture.hidden, mixture.experts), experts_per_token=mixture.per_token,
        scores="softmax", normalizes=True,
    )  # fmt: skip
    layer = Experts(
        router=LoraLinear(router, 0, (ROUTER,), operations), routing=routing, factors=None,
        correction=torch.empty(0, device=stage.device), inputs=inputs, outputs=outputs, operations=operations,
        activation="silu",
    )  # fmt: skip
    dense = [(few[expert % len(few)][0][1], few[expert % len(few)][1][1]) for expert in range(mixture.experts)]
    assert size.dtype.itemsize == 2 or stored == "bfloat16"
    return Layer(layer, dense)


def _method(stage: Stage, stored: str, outputs: int, inputs: int, seed: int) -> tuple[LinearMethod, torch.Tensor]:
    if stored == "bfloat16":
        drawn = torch.Generator().manual_seed(seed)
        weight = (torch.randn(outputs, inputs, generator=drawn) / inputs**0.5).to(stage.size.dtype)
        method: LinearMethod = TorchLinear(inputs, (outputs,), stage.size.dtype, stage.device)
        method.load(0, weight, None)
        method.finish()
        return method, weight.float()
    codes: CodedWeight
    if stored == "float8":
        codes = random_float8(outputs, inputs, (128, 128), seed=seed)
    elif stored == "mxfp4":
        codes = random_float4(outputs, inputs, seed=seed)
    else:
        codes = random_integers(outputs, inputs, 4, inputs // stage.size.group, seed=seed)
    method = CudaPackedLinear(inputs, (outputs,), stage.size.dtype, stage.device)
    method.load(0, codes, None)
    method.finish()
    return method, codes.dequantized()


def _experts(layer: Experts, x: torch.Tensor) -> torch.Tensor:
    return layer.operations.experts.route(layer.router.method.apply(x.float()), layer.correction, None, layer.routing)[
        0
    ]


def reference(made: Layer, x: torch.Tensor, lora: LoraBatch | None) -> torch.Tensor:
    """[T, C] float32 on the host, token by token and expert by expert, by the layer's own routing."""
    layer = made.layer
    logits = layer.router.method.apply(x.float())
    experts, weights = layer.operations.experts.route(logits, layer.correction, None, layer.routing)
    result, values = torch.zeros(x.shape), x.float().cpu()
    for token, own in enumerate(experts.tolist()):
        for place, expert in enumerate(own):
            gate_up, down = made.dense[expert]
            inner = gate_up @ values[token] + _added(lora, token, expert, (GATE, UP), values[token])
            inner = inner.to(x.dtype).float()
            gate, up = inner.chunk(2)
            product = (torch.nn.functional.silu(gate) * up).to(x.dtype).float()
            y = down @ product + _added(lora, token, expert, (DOWN,), product)
            result[token] += weights[token, place].cpu() * y
    return result


def _added(
    lora: LoraBatch | None, token: int, expert: int, kinds: tuple[str, ...], x: torch.Tensor
) -> torch.Tensor | float:
    if lora is None:
        return 0.0
    table, slot, parts = lora.table, int(lora.token_slot[token, 0]), []
    for kind in (f"{expert}.{kind}" for kind in kinds):
        inputs, outputs = table.shapes[kind]
        part = torch.zeros(outputs)
        for offset in table.offset[slot, table.row(kind)].tolist():
            page = table.arena[offset:][: RANKS_PER_PAGE * (inputs + outputs)].float().cpu()
            a = page[: RANKS_PER_PAGE * inputs].view(-1, inputs)
            part += page[RANKS_PER_PAGE * inputs :].view(-1, outputs).T @ (a @ x)
        parts.append(part * float(table.scaling[slot, table.row(kind), 0]))
    return torch.cat(parts)


@lru_cache(maxsize=1)
def make_batch(stage: Stage, mixture: Mixture, adapters: int, tokens: int) -> LoraBatch:
    """Tokens take adapters on all experts in turn."""
    dtype, pages = stage.size.dtype, -(-stage.size.rank // RANKS_PER_PAGE)
    shapes = {
        f"{expert}.{kind}": (mixture.inner, mixture.hidden) if kind == DOWN else (mixture.hidden, mixture.inner)
        for expert in range(mixture.experts)
        for kind in (GATE, UP, DOWN)
    } | {ROUTER: (mixture.hidden, mixture.experts)}
    unit = ALIGNMENT_BYTES // dtype.itemsize
    steps = torch.tensor([-(-RANKS_PER_PAGE * sum(shape) // unit) * unit for shape in shapes.values()])
    ends = steps.repeat_interleave(pages).repeat(adapters).cumsum(0)
    offset = torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1]]).view(adapters, len(shapes), pages)
    each = (adapters, len(shapes), 1)
    table = PageTable(
        arena=torch.randn(int(ends[-1]), dtype=dtype, device=stage.device).mul_(WEIGHT),
        offset=offset.to(stage.device),
        rank=torch.full(each, stage.size.rank, dtype=torch.int32, device=stage.device),
        scaling=torch.rand(each, device=stage.device) + 0.5,
        shapes=shapes,
    )
    table.rank[:, table.row(ROUTER)] = 0
    table.extras |= {slot: Extras(frozenset(), {}, 0, on_experts=True) for slot in range(adapters)}
    slots = (torch.arange(tokens, dtype=torch.int32) % adapters)[:, None]
    batch = LoraBatch.build(table, slots, torch.ones(tokens, 1))
    assert batch is not None
    buffers = StepBuffers(table, tokens)
    buffers.update(batch)
    batch.arrays = StepAdapters([buffers], slots[:, 0].contiguous().to(stage.device))
    return batch
