"""The same linear of E experts on a CUDA device, over rows grouped by expert: one launch for all of them.

Shapes: T tokens with K experts each make P = T K rows, those of an expert side by side.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..kernels.cuda.expert_linear import GroupedRows, linear_of_codes, linear_of_floats
from ..kernels.cuda.guard import require
from ..kernels.cuda.layout import PackedWeight
from .cuda_packed import CudaPackedLinear
from .dequantized import DequantizedLinear
from .scaled_input import ScaledInputLinear
from .scheme import LinearMethod
from .torch_linear import TorchLinear


class CudaExperts:
    """Keeps the weights of the experts' own linears where they are."""

    def __init__(self, methods: Sequence[LinearMethod]) -> None:
        """methods [E], finished. ValueError for weights that no kernel takes so."""
        self._inputs = methods[0].in_features
        self._outputs = sum(methods[0].out_features)
        scaled = [method for method in methods if isinstance(method, ScaledInputLinear)]
        if scaled and len(scaled) < len(methods):
            raise ValueError("experts of one layer, some of whose inputs AWQ scaled")
        self._factors = torch.stack([method.inverse for method in scaled]) if scaled else None
        """[E, in], what the inputs of each are multiplied by."""
        methods = [method.method for method in scaled] or methods
        plain = [method.inner[0] if isinstance(method, DequantizedLinear) else method for method in methods]
        floats = [method for method in plain if isinstance(method, TorchLinear)]
        packed = [method for method in plain if isinstance(method, CudaPackedLinear)]
        if len(floats) == len(methods):
            self._products: list[_Floats | _Codes] = [_Floats([method.arrays() for method in floats])]
        elif len(packed) == len(methods):
            self._products = list(_packed_products(packed))
        else:
            raise ValueError("experts of one layer that are stored in different ways")

    def apply(self, x: torch.Tensor, rows: GroupedRows, *, by_token: bool) -> torch.Tensor:
        """x [T, in] if `by_token`, else [P, in], contiguous -> [P, out]."""
        y = torch.empty(len(rows.pairs), self._outputs, dtype=x.dtype, device=x.device)
        require(x.is_contiguous() and x.shape[1] == self._inputs, f"x must be contiguous rows of {self._inputs} inputs")
        if self._factors is not None:
            x, by_token = self._scaled(x, rows, by_token), False
        for product in self._products if len(y) else ():
            product.launch(y, x, rows, by_token)
        return y

    def _scaled(self, x: torch.Tensor, rows: GroupedRows, by_token: bool) -> torch.Tensor:
        """[P, in]"""
        assert self._factors is not None
        owners = rows.experts.view(-1).index_select(0, rows.pairs)
        x = x.index_select(0, rows.pairs // rows.per_token) if by_token else x
        return x * self._factors.index_select(0, owners).to(x.dtype)


class _Floats:
    def __init__(self, arrays: list[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
        weights = [weight for weight, _ in arrays]
        biases = _given([bias for _, bias in arrays])
        self._kept = [*weights, *biases]
        self._table = _addresses([weights, biases or weights])
        self._has_bias = bool(biases)

    def launch(self, y: torch.Tensor, x: torch.Tensor, rows: GroupedRows, by_token: bool) -> None:
        linear_of_floats(y, x, self._table, rows, by_token=by_token, has_bias=self._has_bias)


class _Codes:
    def __init__(self, weights: list[PackedWeight], biases: list[torch.Tensor], first: int) -> None:
        """biases [E] or none; `first`: which output of the linear is the weights' first."""
        self._first = first
        self._biases = [bias[first : first + weights[0].outputs] for bias in biases]
        self._kept = weights
        arrays = ([getattr(weight, name) for weight in weights] for name in ("codes", "scales", "zeros"))
        self._table = _addresses([*arrays, self._biases or [weight.codes for weight in weights]])

    def launch(self, y: torch.Tensor, x: torch.Tensor, rows: GroupedRows, by_token: bool) -> None:
        y = y[:, self._first :]
        has_bias = bool(self._biases)
        linear_of_codes(y, x, self._table, self._kept[0], rows, by_token=by_token, has_bias=has_bias)


def _packed_products(methods: list[CudaPackedLinear]) -> Iterator[_Codes]:
    """One for each of the weights that every linear has, one below the other."""
    arrays, first = [method.arrays() for method in methods], 0
    columns = [weights for weights, _ in arrays]
    if any(weight.order is not None for weights in columns for weight in weights):
        raise ValueError("experts whose inputs lie in activation order (desc_act)")
    if any(_form(weights) != _form(columns[0]) for weights in columns):
        raise ValueError("experts of one layer that are quantized in different ways")
    biases = _given([bias for _, bias in arrays])
    for alike in zip(*columns, strict=True):
        yield _Codes(_unified(list(alike)), biases, first)
        first += alike[0].outputs


def _form(weights: list[PackedWeight]) -> list[tuple[int, ...]]:
    return [(weight.format, weight.outputs, weight.inputs, weight.run, weight.group_runs) for weight in weights]


def _unified(weights: list[PackedWeight]) -> list[PackedWeight]:
    """The same, with scales of one dtype and as many groups of zeros: pack() keeps each of them as small as it can."""
    dtypes = {weight.scales.dtype for weight in weights}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    groups = max(weight.zeros.shape[1] for weight in weights)
    return [
        replace(
            weight,
            scales=weight.scales.to(dtype),
            zeros=weight.zeros.expand(-1, groups, -1).contiguous() if weight.zeros.shape[1] < groups else weight.zeros,
        )
        for weight in weights
    ]


def _given(biases: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    """[E], zeros for experts without one; none where no expert has one."""
    found = next((bias for bias in biases if bias is not None), None)
    return [] if found is None else [torch.zeros_like(found) if bias is None else bias for bias in biases]


def _addresses(columns: Sequence[Sequence[Any]]) -> torch.Tensor:
    """[E, columns] int64, where the arrays are."""
    table = torch.tensor([[array.data_ptr() for array in row] for row in zip(*columns, strict=True)])
    return table.to(columns[0][0].device)
