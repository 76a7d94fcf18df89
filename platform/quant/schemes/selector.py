"""SchemeSelector: which linear method stores which weights of a model, and why."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from ..linears.dequantized import DequantizedLinear
from ..linears.scheme import LinearMethod
from ..linears.side_by_side import SideBySideLinear
from ..weights.weights import CodedWeight, Weight

CreateLinear = Callable[[int, tuple[int, ...]], LinearMethod]
CreateCoded = Callable[[Hashable, int, tuple[int, ...]], LinearMethod]


def create_float32(in_features: int, out_features: tuple[int, ...]) -> LinearMethod:
    from ..linears.stored_float import StoredFloatLinear

    return StoredFloatLinear(in_features, out_features, torch.float32)


def expand_all(weight: CodedWeight) -> Hashable:
    """SchemeSelector.form where no kernel takes codes."""
    return None


@dataclass(frozen=True, slots=True)
class SchemeSelector:
    create: CreateLinear
    """(in_features, out_features of each part) -> an empty linear group for float weights."""
    compute_dtype: torch.dtype
    """Dtype of the activations."""
    reason: str
    """One sentence for doctor and the start-up box."""
    create_dequantized: CreateLinear = create_float32
    """The same for what quantized weights stand for, in the compute dtype."""
    create_coded: CreateCoded | None = None
    """The same for quantized weights of one `form`, which comes first; None: all of them are expanded."""
    form: Callable[[CodedWeight], Hashable] = expand_all
    """Equal for quantized weights that one method can store together; None for those that no kernel takes."""
    activations: str = ""
    """In words what linears do to activations beyond rounding them to `compute_dtype`; empty: nothing."""
    create_exact: CreateLinear = create_float32
    """As `create`, for weights and arithmetic in float32, whatever the others are."""
    for_experts: "SchemeSelector | None" = None
    """Which stores the linears of experts; None: this one."""

    def create_for(self, weights: Sequence[Weight]) -> LinearMethod:
        """An empty linear group for these parts [out, in]: one method for parts stored alike, else one each, side by
        side."""
        runs = [(form, tuple(run)) for form, run in groupby(weights, self._form)]
        methods = [self._create_alike(form, run) for form, run in runs]
        return methods[0] if len(methods) == 1 else SideBySideLinear(methods)

    def _form(self, weight: Weight) -> Hashable:
        """Equal for weights that one method can store together; None for those that are expanded."""
        if isinstance(weight, torch.Tensor):
            return torch.Tensor
        return None if self.create_coded is None else self.form(weight)

    def _create_alike(self, form: Hashable, weights: tuple[Weight, ...]) -> LinearMethod:
        inputs, outputs = weights[0].shape[1], tuple(weight.shape[0] for weight in weights)
        if form is torch.Tensor:
            return self.create(inputs, outputs)
        if form is None or self.create_coded is None:
            return DequantizedLinear(self.create_dequantized(inputs, outputs), self.compute_dtype)
        return self.create_coded(form, inputs, outputs)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
