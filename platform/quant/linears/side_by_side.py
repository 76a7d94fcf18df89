"""A group whose parts are stored in different ways: a method for each run of them, results beside one another."""

from collections.abc import Sequence
from typing import Any, Self

import torch

from ..weights.weights import Weight
from .packed import PackedLinear
from .scheme import LinearMethod


class SideBySideLinear:
    def __init__(self, methods: Sequence[LinearMethod]) -> None:
        """Of the same inputs, in the order of the parts."""
        self.in_features = methods[0].in_features
        self.out_features = tuple(rows for method in methods for rows in method.out_features)
        self.inner: tuple[LinearMethod, ...] = tuple(methods)
        self._places = [(method, part) for method in methods for part in range(len(method.out_features))]

    def load(self, part: int, weight: Weight, bias: torch.Tensor | None) -> None:
        method, own_part = self._places[part]
        method.load(own_part, weight, bias)

    def finish(self) -> None:
        for method in self.inner:
            method.finish()

    def packed(self) -> PackedLinear:
        return PackedLinear(type(self).__name__, self.in_features, self.out_features)

    @classmethod
    def restored(cls, packed: PackedLinear, inner: tuple[Any, ...]) -> Self:
        return cls(inner)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([method.apply(x) for method in self.inner], dim=1)

    def columns(self, first: int, last: int) -> torch.Tensor:
        return torch.cat([method.columns(first, last) for method in self.inner], dim=1)

    def bias(self) -> torch.Tensor:
        return torch.cat([method.bias() for method in self.inner])

    def weight_bytes(self) -> int:
        return sum(method.weight_bytes() for method in self.inner)
