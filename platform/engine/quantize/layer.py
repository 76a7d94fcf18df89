"""One layer of a checkpoint, quantized: its linears by the recipe, everything else as it is stored."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from loraplex.quant.calibrate.activations import InputStatistics
from loraplex.quant.calibrate.awq import clip, group_products, outputs_at_once, search_scales
from loraplex.quant.calibrate.gptq import round_with_hessian
from loraplex.quant.weights.recipe import Recipe
from loraplex.quant.weights.rounding import IntegerGrid
from loraplex.quant.weights.weights import Float8Weight, IntegerWeight

from ..model.description.spec import NormSpec
from ..model.layer_inputs import LayerInput
from .float_layers import OnDemand
from .fold import folded, storable_scales
from .plain.forward import LayerTensors

UNCLIPPED = ("q_proj", "k_proj", "c_attn", "qkv_proj")
"""Their outputs, or some, are multiplied with each other before a softmax: an error of each is not what counts."""

Statistics = Mapping[str, InputStatistics]
"""By the place of an input."""
LEAST_TOKENS: Final = 32
"""Linears that read fewer are rounded to nearest: what so few activations say would fit them, and not the others."""
Dtypes = Mapping[str, torch.dtype]
"""What the checkpoint stores each tensor in."""


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    weights: dict[str, IntegerWeight | Float8Weight]
    """By linear."""
    floats: dict[str, torch.Tensor]
    """The other tensors by name, in the dtype they are stored in."""
    scales: dict[str, torch.Tensor]
    """By the place of an input, what AWQ multiplied the linears' inputs by, [in] float32; none elsewhere."""
    unseen: tuple[str, ...] = ()
    """Linears that a recipe which reads activations rounded to nearest, as fewer than LEAST_TOKENS tokens came."""

    def tensors(self) -> LayerTensors:
        """What a reader makes of it, float32, anew each time."""
        floats = {name: tensor.float for name, tensor in self.floats.items()}
        return OnDemand(floats | {f"{linear}.weight": weight.dequantized for linear, weight in self.weights.items()})


def quantize_layer(
    tensors: LayerTensors, stored: Dtypes, statistics: Statistics, recipe: Recipe, inputs: Sequence[LayerInput]
) -> QuantizedLayer:
    """tensors: of the layer, float32, each asked for when its turn comes. ValueError names the linear."""
    if recipe.scheme == "awq":
        return _awq(tensors, stored, statistics, recipe, inputs)
    if recipe.scheme == "gptq":
        weights, unseen = _gptq(tensors, statistics, recipe, inputs)
        return QuantizedLayer(weights, _floats(tensors, stored, inputs), {}, tuple(unseen))
    return round_layer(tensors, stored, recipe, inputs)


def round_layer(tensors: LayerTensors, stored: Dtypes, recipe: Recipe, inputs: Sequence[LayerInput]) -> QuantizedLayer:
    """The same layer rounded to nearest: what a recipe that reads activations is compared to."""
    weights = {}
    for linear in linears_of(inputs):
        with _named(linear):
            weights[linear] = recipe.nearest(tensors[f"{linear}.weight"])
    return QuantizedLayer(weights, _floats(tensors, stored, inputs), {})


def linears_of(inputs: Sequence[LayerInput]) -> list[str]:
    """Paths of all linears that read these."""
    return [linear.path for at in inputs for linear in at.linears]


def _gptq(
    tensors: LayerTensors, statistics: Statistics, recipe: Recipe, inputs: Sequence[LayerInput]
) -> tuple[dict[str, IntegerWeight | Float8Weight], list[str]]:
    """The weights, and which linears are unseen. Linears that read the same input are rounded as one: their outputs
    know nothing of each other."""
    grid, group_size = _grouped(recipe)
    weights: dict[str, IntegerWeight | Float8Weight] = {}
    unseen: list[str] = []
    for at in inputs:
        linears, seen = linears_of([at]), statistics[at.place]
        parts = [tensors[f"{linear}.weight"] for linear in linears]
        with _named(", ".join(linears)):
            if seen.num_rows < LEAST_TOKENS:
                unseen += linears
                weights |= {linear: recipe.nearest(part) for linear, part in zip(linears, parts, strict=True)}
                continue
            order = recipe.activation_order
            rounded = round_with_hessian(torch.cat(parts), seen.hessian, grid, group_size, activation_order=order)
        weights |= zip(linears, _split_outputs(rounded, [len(part) for part in parts]), strict=True)
    return weights, unseen


def _split_outputs(weight: IntegerWeight, sizes: list[int]) -> list[IntegerWeight]:
    parts = zip(*(torch.split(part, sizes) for part in (weight.values, weight.scales, weight.zeros)), strict=True)
    return [
        IntegerWeight(bits=weight.bits, values=values, scales=scales, zeros=zeros) for values, scales, zeros in parts
    ]


def _awq(
    tensors: LayerTensors, stored: Dtypes, statistics: Statistics, recipe: Recipe, inputs: Sequence[LayerInput]
) -> QuantizedLayer:
    scales = {}
    for at in inputs if recipe.fold else ():
        if at.maker is not None:
            scales[at.place] = _search(at, tensors, stored, statistics[at.place], recipe)
    weights: dict[str, IntegerWeight | Float8Weight] = {}
    unseen: list[str] = []
    for at in inputs:
        seen, products = statistics[at.place], None
        if seen.num_rows < LEAST_TOKENS:
            unseen += linears_of([at])
        else:
            products = group_products(seen.rows / scales.get(at.place, 1), _grouped(recipe)[1])
        for linear in linears_of([at]):
            change = partial(folded, f"{linear}.weight", scales=scales, inputs=inputs)
            with _named(linear):
                weights[linear] = _clipped(linear, tensors[f"{linear}.weight"], products, recipe, change)
    floats = {name: folded(name, tensors[name], scales, inputs) for name in _float_names(tensors, inputs)}
    return QuantizedLayer(weights, _floats(floats, stored, inputs), scales, tuple(unseen))


def _clipped(
    linear: str, weight: torch.Tensor, products: torch.Tensor | None, recipe: Recipe, fold: Callable[..., torch.Tensor]
) -> IntegerWeight:
    """A few outputs after the others: each is folded, clipped and rounded by itself. products: None clips nothing."""
    grid, _ = _grouped(recipe)
    parts, step = [], outputs_at_once(weight)
    for first in range(0, len(weight), step):
        rows = slice(first, first + step)
        part = fold(tensor=weight[rows], rows=rows)
        if products is not None and not linear.endswith(UNCLIPPED):
            part = clip(part, products, grid)
        rounded = recipe.nearest(part)
        assert isinstance(rounded, IntegerWeight)
        parts.append(rounded)
    fields = zip(*((part.values, part.scales, part.zeros) for part in parts), strict=True)
    values, scales, zeros = (torch.cat(pieces) for pieces in fields)
    return IntegerWeight(bits=grid.bits, values=values, scales=scales, zeros=zeros)


def _search(
    at: LayerInput, tensors: LayerTensors, stored: Dtypes, statistics: InputStatistics, recipe: Recipe
) -> torch.Tensor:
    grid, group_size = _grouped(recipe)
    if statistics.num_rows < LEAST_TOKENS:
        return torch.ones(at.linears[0].inputs, device=statistics.rows.device)
    weights = (tensors[f"{linear}.weight"] for linear in linears_of([at]))
    magnitudes = at.shared(statistics.magnitudes.to(statistics.rows.device))
    scales = search_scales(weights, statistics.rows, magnitudes, grid, group_size)
    if not isinstance(at.maker, NormSpec):
        return scales
    name = f"{at.maker.path}.weight"
    return storable_scales(scales, tensors[name], stored[name], at.maker.adds_one)


def _grouped(recipe: Recipe) -> tuple[IntegerGrid, int]:
    assert recipe.grid is not None and recipe.group_size is not None, "awq and gptq are integers in groups"
    return recipe.grid, recipe.group_size


def _floats(tensors: LayerTensors, stored: Dtypes, inputs: Sequence[LayerInput]) -> dict[str, torch.Tensor]:
    return {name: tensors[name].to(stored[name]) for name in _float_names(tensors, inputs)}


def _float_names(tensors: LayerTensors, inputs: Sequence[LayerInput]) -> list[str]:
    weights = {f"{linear}.weight" for linear in linears_of(inputs)}
    return [name for name in tensors if name not in weights]


@contextmanager
def _named(linear: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{linear}: {error}") from None
