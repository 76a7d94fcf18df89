"""A linear whose stored weight expects divided inputs: y = W (x / scales) + bias, as AWQ's scale search leaves it."""

import torch

from .scheme import LinearMethod
from .weights import Weight


class ScaledInputLinear:
    def __init__(self, method: LinearMethod, scales: torch.Tensor) -> None:
        """`method` as it stores and multiplies W, scales [in]."""
        self.in_features = method.in_features
        self.out_features = method.out_features
        self._method = method
        self._inverse = scales.float().reciprocal()

    def load(self, part: int, weight: Weight, bias: torch.Tensor | None) -> None:
        self._method.load(part, weight, bias)

    def finish(self) -> None:
        self._method.finish()

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self._method.apply(x * self._inverse.to(x.dtype))

    def columns(self, first: int, last: int) -> torch.Tensor:
        return self._method.columns(first, last) * self._inverse[first:last, None]

    def bias(self) -> torch.Tensor:
        return self._method.bias()

    def weight_bytes(self) -> int:
        return self._method.weight_bytes() + self._inverse.nbytes
