"""One layer of a checkpoint, quantized: its linears by the recipe, everything else as it is stored."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from loraplex.quant.calibrate.activations import InputStatistics
from loraplex.quant.calibrate.awq import clip, group_products, outputs_at_once, search_scales
from loraplex.quant.calibrate.gptq import round_with_hessian
from loraplex.quant.weights.recipe import Recipe
from loraplex.quant.weights.rounding import IntegerGrid
from loraplex.quant.weights.weights import Float8Weight, IntegerWeight

from ..model.config import ModelConfig
from ..model.layer_inputs import INPUTS, linears_of
from .float_layers import OnDemand
from .fold import folded, norm_name, shared_magnitudes, storable_scales
from .forward import LayerTensors

LINEARS = tuple(linear for place in INPUTS for linear in linears_of(place))
UNCLIPPED = ("self_attn.q_proj", "self_attn.k_proj")
"""Their outputs are multiplied with each other before a softmax: an error of each is not what counts."""

Statistics = Mapping[str, InputStatistics]
"""By one of INPUTS."""
Dtypes = Mapping[str, torch.dtype]
"""What the checkpoint stores each tensor in."""


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    weights: dict[str, IntegerWeight | Float8Weight]
    """By linear."""
    floats: dict[str, torch.Tensor]
    """The other tensors by name, in the dtype they are stored in."""
    scales: dict[str, torch.Tensor]
    """By one of INPUTS, what AWQ multiplied the linears' inputs by, [in] float32; none elsewhere."""

    def tensors(self) -> LayerTensors:
        """What a reader makes of it, float32, anew each time."""
        floats = {name: tensor.float for name, tensor in self.floats.items()}
        return OnDemand(floats | {f"{linear}.weight": weight.dequantized for linear, weight in self.weights.items()})


def quantize_layer(
    tensors: LayerTensors, stored: Dtypes, statistics: Statistics, recipe: Recipe, config: ModelConfig
) -> QuantizedLayer:
    """tensors: of the layer, float32, each asked for when its turn comes. ValueError names the linear."""
    if recipe.scheme == "awq":
        return _awq(tensors, stored, statistics, recipe, config)
    if recipe.scheme == "gptq":
        return QuantizedLayer(_gptq(tensors, statistics, recipe), _floats(tensors, stored), {})
    weights = {}
    for linear in LINEARS:
        with _named(linear):
            weights[linear] = recipe.nearest(tensors[f"{linear}.weight"])
    return QuantizedLayer(weights, _floats(tensors, stored), {})


def round_layer(tensors: LayerTensors, stored: Dtypes, recipe: Recipe) -> QuantizedLayer:
    """The same layer rounded to nearest: what a recipe that reads activations is compared to."""
    weights = {linear: recipe.nearest(tensors[f"{linear}.weight"]) for linear in LINEARS}
    return QuantizedLayer(weights, _floats(tensors, stored), {})


def _gptq(tensors: LayerTensors, statistics: Statistics, recipe: Recipe) -> dict[str, IntegerWeight | Float8Weight]:
    """Linears that read the same input are rounded as one: their outputs know nothing of each other."""
    grid, group_size = _grouped(recipe)
    weights: dict[str, IntegerWeight | Float8Weight] = {}
    for place in INPUTS:
        linears = linears_of(place)
        parts = [tensors[f"{linear}.weight"] for linear in linears]
        with _named(", ".join(linears)):
            hessian, order = statistics[place].hessian, recipe.activation_order
            rounded = round_with_hessian(torch.cat(parts), hessian, grid, group_size, activation_order=order)
        weights |= zip(linears, _split_outputs(rounded, [len(part) for part in parts]), strict=True)
    return weights


def _split_outputs(weight: IntegerWeight, sizes: list[int]) -> list[IntegerWeight]:
    parts = zip(*(torch.split(part, sizes) for part in (weight.values, weight.scales, weight.zeros)), strict=True)
    return [
        IntegerWeight(bits=weight.bits, values=values, scales=scales, zeros=zeros) for values, scales, zeros in parts
    ]


def _awq(
    tensors: LayerTensors, stored: Dtypes, statistics: Statistics, recipe: Recipe, config: ModelConfig
) -> QuantizedLayer:
    scales = {}
    if recipe.fold:
        scales = {place: _search(place, tensors, stored, statistics[place], recipe, config) for place in INPUTS}
    weights: dict[str, IntegerWeight | Float8Weight] = {}
    for place in INPUTS:
        products = group_products(statistics[place].rows / scales.get(place, 1), _grouped(recipe)[1])
        for linear in linears_of(place):
            change = partial(folded, f"{linear}.weight", scales=scales, config=config)
            with _named(linear):
                weights[linear] = _clipped(linear, tensors[f"{linear}.weight"], products, recipe, change)
    floats = {name: folded(name, tensors[name], scales, config) for name in _float_names(tensors)}
    return QuantizedLayer(weights, _floats(floats, stored), scales)


def _clipped(
    linear: str, weight: torch.Tensor, products: torch.Tensor, recipe: Recipe, fold: Callable[..., torch.Tensor]
) -> IntegerWeight:
    """A few outputs after the others: each is folded, clipped and rounded by itself."""
    grid, _ = _grouped(recipe)
    parts, step = [], outputs_at_once(weight)
    for first in range(0, len(weight), step):
        rows = slice(first, first + step)
        part = fold(tensor=weight[rows], rows=rows)
        rounded = recipe.nearest(part if linear in UNCLIPPED else clip(part, products, grid))
        assert isinstance(rounded, IntegerWeight)
        parts.append(rounded)
    fields = zip(*((part.values, part.scales, part.zeros) for part in parts), strict=True)
    values, scales, zeros = (torch.cat(pieces) for pieces in fields)
    return IntegerWeight(bits=grid.bits, values=values, scales=scales, zeros=zeros)


def _search(
    place: str,
    tensors: LayerTensors,
    stored: Dtypes,
    statistics: InputStatistics,
    recipe: Recipe,
    config: ModelConfig,
) -> torch.Tensor:
    grid, group_size = _grouped(recipe)
    weights = (tensors[f"{linear}.weight"] for linear in linears_of(place))
    magnitudes = shared_magnitudes(place, statistics.magnitudes.to(statistics.rows.device), config)
    scales = search_scales(weights, statistics.rows, magnitudes, grid, group_size)
    name = norm_name(place)
    return scales if name is None else storable_scales(scales, tensors[name], stored[name])


def _grouped(recipe: Recipe) -> tuple[IntegerGrid, int]:
    assert recipe.grid is not None and recipe.group_size is not None, "awq and gptq are integers in groups"
    return recipe.grid, recipe.group_size


def _floats(tensors: LayerTensors, stored: Dtypes) -> dict[str, torch.Tensor]:
    return {name: tensors[name].to(stored[name]) for name in _float_names(tensors)}


def _float_names(tensors: LayerTensors) -> list[str]:
    weights = {f"{linear}.weight" for linear in LINEARS}
    return [name for name in tensors if name not in weights]


@contextmanager
def _named(linear: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{linear}: {error}") from None
