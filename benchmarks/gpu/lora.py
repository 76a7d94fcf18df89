"""Linears of a decode step with adapters beside the same linears alone, in one CUDA graph: shrink and expand of every
group as two launches, as the engine has them, and as one. Attention, norms and the head are not in it, so that the
goals, which are for whole steps, are harder here."""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F

from loraplex.lora.apply.batch import RANKS_PER_PAGE, LoraBatch, PageTable
from loraplex.lora.apply.step_buffers import StepBuffers
from loraplex.lora.kernels.cuda.entry import StepTensors, add_lora
from loraplex.lora.kernels.cuda.one_launch import add_lora_at_once
from loraplex.lora.kernels.cuda.tiles import ALIGNMENT_BYTES

from .figure import TOLERANCE, Figure, Stage, require_call
from .size import Size

GOALS: Final = {1: 1.08, 8: 1.11, 64: 1.33}
GROUPS: Final = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
WEIGHT: Final = 0.05
"""Standard deviation of adapters' weights."""


class Step(NamedTuple):
    table: PageTable
    buffers: StepBuffers
    slots: torch.Tensor
    """[T], each token's adapter; `scales` [T] its factor."""
    scales: torch.Tensor


def figures(size: Size) -> list[Figure]:
    return [
        Figure(
            f"LoRA: linears of {size.lora_tokens} tokens with {count} adapters, r={size.rank}: time / without{words}",
            "x",
            GOALS.get(count),
            partial(time_beside_base, count, add),
            at_least=False,
        )
        for count in size.adapters
        for words, add in (("", add_lora), (", shrink and expand in one launch", add_at_once))
    ]


def add_at_once(y: torch.Tensor, x: torch.Tensor, step: StepTensors, *where: Any) -> None:
    """As `add_lora`."""
    add_lora_at_once(y, x, step, _arrivals(y.device), *where)


@lru_cache
def _arrivals(device: torch.device) -> torch.Tensor:
    return torch.zeros(2, dtype=torch.int32, device=device)


def time_beside_base(adapters: int, way: Callable[..., None], stage: Stage) -> float:
    size, step = stage.size, make_step(stage, adapters)
    for name in GROUPS:
        for layer in {0, size.layers - 1}:
            check(stage, step, name, layer, way)
    inputs = {name: stage.random(size.lora_tokens, width) for name, (_, width) in size.linears.items()}
    weights = base_weights(stage)

    def pass_layers(adapted: bool) -> torch.Tensor:
        for layer in range(size.layers):
            for name in GROUPS:
                y = F.linear(inputs[name], weights[layer][name])
                if adapted:
                    add(way, step, y, inputs[name], layer, name)
        return y

    taken = stage.clock.seconds({"base": [partial(pass_layers, False)], "lora": [partial(pass_layers, True)]})
    return taken["lora"] / taken["base"]


def add(way: Callable[..., None], step: Step, y: torch.Tensor, x: torch.Tensor, layer: int, name: str) -> None:
    kinds = GROUPS[name]
    indices, widths = step.table.group(kinds)
    way(y, x, step.buffers.tensors, step.buffers.bound_chunks(len(x)), layer, indices, widths)


def check(stage: Stage, step: Step, name: str, layer: int, way: Callable[..., None] = add_lora) -> None:
    """Raises WrongResult unless y becomes y + scaling (x A^T) B, beside a y of the same size."""
    outputs, inputs = stage.size.linears[name]
    x = stage.random(stage.size.lora_tokens, inputs)
    wanted = reference(step, x, layer, GROUPS[name])
    y = stage.random(len(x), outputs, scale=float(wanted.std()))

    def added() -> torch.Tensor:
        result = y.clone()
        add(way, step, result, x, layer, name)
        return result

    require_call(added, y.float() + wanted, TOLERANCE)


def reference(step: Step, x: torch.Tensor, layer: int, kinds: tuple[str, ...]) -> torch.Tensor:
    """scaling (x A^T) B in float32, [T, sum of the kinds' outputs], adapter by adapter."""
    result = torch.zeros(len(x), sum(step.table.shapes[kind][1] for kind in kinds), device=x.device)
    for slot in sorted(set(step.slots.tolist())):
        tokens = (step.slots == slot).nonzero()[:, 0].to(x.device)
        first = 0
        for kind in kinds:
            width = step.table.shapes[kind][1]
            factors = step.table.scaling[slot, step.table.row(kind), layer] * step.scales.to(x.device)[tokens, None]
            for a, b in pages(step.table, slot, kind, layer):
                result[tokens, first : first + width] += (x[tokens].float() @ a.float().T) * factors @ b.float()
            first += width
    return result


def pages(table: PageTable, slot: int, kind: str, layer: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A [8, in] and B [8, out] of each page."""
    inputs, outputs = table.shapes[kind]
    for offset in table.offset[slot, table.row(kind)].tolist():
        page = table.arena[offset + layer * RANKS_PER_PAGE * (inputs + outputs) :][
            : RANKS_PER_PAGE * (inputs + outputs)
        ]
        split = RANKS_PER_PAGE * inputs
        yield page[:split].view(-1, inputs), page[split:].view(-1, outputs)


def make_step(stage: Stage, adapters: int) -> Step:
    """Tokens take the adapters in turn."""
    size, table = stage.size, make_table(stage, adapters)
    slots = torch.arange(size.lora_tokens, dtype=torch.int32) % adapters
    scales = (slots % 3 + 1) / 2
    batch = LoraBatch.build(table, slots, scales)
    buffers = StepBuffers(table, size.lora_tokens)
    buffers.update(batch)
    return Step(table, buffers, slots, scales)


def make_table(stage: Stage, adapters: int) -> PageTable:
    """Random adapters on all linears of all layers, pages one after another on aligned places."""
    size = stage.size
    shapes, pages_each = linear_shapes(size), -(-size.rank // RANKS_PER_PAGE)
    step = ALIGNMENT_BYTES // size.dtype.itemsize
    places = {kind: -(-size.layers * RANKS_PER_PAGE * sum(shape) // step) * step for kind, shape in shapes.items()}
    offset, position = torch.zeros(adapters, len(shapes), pages_each, dtype=torch.int64), 0
    for slot in range(adapters):
        for index, kind in enumerate(shapes):
            for page in range(pages_each):
                offset[slot, index, page] = position
                position += places[kind]
    per_layer = (adapters, len(shapes), size.layers)
    return PageTable(
        arena=torch.randn(position, dtype=size.dtype, device=stage.device).mul_(WEIGHT),
        offset=offset.to(stage.device),
        rank=torch.full(per_layer, size.rank, dtype=torch.int32, device=stage.device),
        scaling=torch.rand(per_layer, device=stage.device) + 0.5,
        shapes=shapes,
    )


def linear_shapes(size: Size) -> dict[str, tuple[int, int]]:
    """kind -> inputs and outputs."""
    query, kv = size.heads * size.head_dim, size.kv_heads * size.head_dim
    linears = [kind for kinds in GROUPS.values() for kind in kinds]
    outputs = dict(zip(linears, (query, kv, kv, size.hidden, *(size.intermediate,) * 2, size.hidden), strict=True))
    return {kind: (size.linears[name][1], outputs[kind]) for name, kinds in GROUPS.items() for kind in kinds}


@lru_cache(maxsize=1)
def base_weights(stage: Stage) -> list[dict[str, torch.Tensor]]:
    """The fused linears of each layer."""
    make: Callable[..., torch.Tensor] = partial(stage.random, scale=0.02)
    return [{name: make(*shape) for name, shape in stage.size.linears.items()} for _ in range(stage.size.layers)]
