"""A quantized weight multiplied as the floats it stands for: right, and as large as an unquantized one."""

from typing import Any, Self

import torch

from .packed import PackedLinear, pack
from .scheme import LinearMethod
from .weights import Float8Weight, IntegerWeight


class DequantizedLinear:
    def __init__(self, method: LinearMethod, dtype: torch.dtype) -> None:
        """`method`: of tensors; weights are handed to it in `dtype`."""
        self.in_features = method.in_features
        self.out_features = method.out_features
        self._method = method
        self._dtype = dtype

    def load(self, part: int, weight: IntegerWeight | Float8Weight, bias: torch.Tensor | None) -> None:
        self._method.load(part, weight.dequantized().to(self._dtype), bias)

    def finish(self) -> None:
        self._method.finish()

    def packed(self) -> PackedLinear:
        facts: dict[str, str | int] = {"dtype": str(self._dtype).removeprefix("torch.")}
        inner = (pack(self._method),)
        return PackedLinear(type(self).__name__, self.in_features, self.out_features, facts, inner=inner)

    @classmethod
    def restored(cls, packed: PackedLinear, inner: list[Any]) -> Self:
        return cls(inner[0], getattr(torch, str(packed.facts["dtype"])))

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self._method.apply(x)

    def columns(self, first: int, last: int) -> torch.Tensor:
        return self._method.columns(first, last)

    def bias(self) -> torch.Tensor:
        return self._method.bias()

    def weight_bytes(self) -> int:
        return self._method.weight_bytes()
