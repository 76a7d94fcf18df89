"""A quantized weight multiplied as the floats it stands for: right, and as large as an unquantized one."""

from typing import Any, Self

import torch

from ..weights.weights import CodedWeight
from .packed import PackedLinear
from .scheme import LinearMethod


class DequantizedLinear:
    def __init__(self, method: LinearMethod, dtype: torch.dtype) -> None:
        """`method`: of tensors; weights are handed to it in `dtype`."""
        self.in_features = method.in_features
        self.out_features = method.out_features
        self.inner: tuple[LinearMethod, ...] = (method,)
        self._dtype = dtype

    def load(self, part: int, weight: CodedWeight, bias: torch.Tensor | None) -> None:
        self.inner[0].load(part, weight.dequantized().to(self._dtype), bias)

    def finish(self) -> None:
        self.inner[0].finish()

    def packed(self) -> PackedLinear:
        facts: dict[str, str | int] = {"dtype": str(self._dtype).removeprefix("torch.")}
        return PackedLinear(type(self).__name__, self.in_features, self.out_features, facts)

    @classmethod
    def restored(cls, packed: PackedLinear, inner: tuple[Any, ...]) -> Self:
        return cls(inner[0], getattr(torch, str(packed.facts["dtype"])))

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner[0].apply(x)

    def columns(self, first: int, last: int) -> torch.Tensor:
        return self.inner[0].columns(first, last)

    def bias(self) -> torch.Tensor:
        return self.inner[0].bias()

    def weight_bytes(self) -> int:
        return self.inner[0].weight_bytes()
