"""A quantized weight multiplied as the floats it stands for: right, and as large as an unquantized one."""

import torch

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

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self._method.apply(x)

    def columns(self, first: int, last: int) -> torch.Tensor:
        return self._method.columns(first, last)

    def bias(self) -> torch.Tensor:
        return self._method.bias()

    def weight_bytes(self) -> int:
        return self._method.weight_bytes()
