"""A linear whose stored weight expects divided inputs: y = W (x / scales) + bias, as AWQ's scale search leaves it."""

from typing import Any, Protocol, Self, runtime_checkable

import torch

from ..weights.weights import Weight
from .packed import PackedLinear
from .scheme import LinearMethod


@runtime_checkable
class Placed(Protocol):
    """A LinearMethod that any_linear can take."""

    def where(self) -> list[int]: ...

    def scratch_bytes(self, rows: int) -> int: ...


class ScaledInputLinear:
    def __init__(self, method: LinearMethod, scales: torch.Tensor) -> None:
        """`method` as it stores and multiplies W, scales [in]."""
        self.in_features = method.in_features
        self.out_features = method.out_features
        self.inner: tuple[LinearMethod, ...] = (method,)
        self._inverse = scales.float().reciprocal()

    @property
    def method(self) -> LinearMethod:
        return self.inner[0]

    @property
    def inverse(self) -> torch.Tensor:
        """[in] float32, what inputs are multiplied by."""
        return self._inverse

    def load(self, part: int, weight: Weight, bias: torch.Tensor | None) -> None:
        self.method.load(part, weight, bias)

    def finish(self) -> None:
        self.method.finish()

    def packed(self) -> PackedLinear:
        arrays = {"inverse": self._inverse}
        return PackedLinear(type(self).__name__, self.in_features, self.out_features, arrays=arrays)

    @classmethod
    def restored(cls, packed: PackedLinear, inner: tuple[Any, ...]) -> Self:
        method = cls(inner[0], torch.ones(packed.in_features))
        method._inverse = packed.arrays["inverse"]
        return method

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self.method.apply(x * self._inverse.to(x.dtype))

    def where(self) -> list[int]:
        """As any_linear takes it, of a method that has such a place: kernels divide as they pack their rows."""
        assert isinstance(self.method, Placed)
        return [*self.method.where()[:-1], self._inverse.data_ptr()]

    def scratch_bytes(self, rows: int) -> int:
        """That any_linear needs for so many rows."""
        assert isinstance(self.method, Placed)
        return self.method.scratch_bytes(rows)

    def columns(self, first: int, last: int) -> torch.Tensor:
        return self.method.columns(first, last) * self._inverse[first:last, None]

    def bias(self) -> torch.Tensor:
        return self.method.bias()

    def weight_bytes(self) -> int:
        return self.method.weight_bytes() + self._inverse.nbytes
