"""PackedLinear: a finished linear as plain facts and arrays, from which the same one is made again without packing."""

from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from .scheme import LinearMethod


@dataclass(frozen=True, slots=True)
class PackedLinear:
    method: str
    """Name of the class that made it."""
    in_features: int
    out_features: tuple[int, ...]
    facts: dict[str, str | int] = field(default_factory=dict)
    """What its arrays do not say."""
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    """One-dimensional, as they lie in memory."""
    inner: tuple["PackedLinear", ...] = ()
    """Of the linears that it is made of."""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values()) + sum(one.nbytes for one in self.inner)


@runtime_checkable
class Packable(LinearMethod, Protocol):
    """A LinearMethod that can be stored; `restore.py` lists them."""

    def packed(self) -> PackedLinear:
        """After finish(). Shares memory with the linear."""

    @classmethod
    def restored(cls, packed: PackedLinear, inner: list[Any]) -> Self:
        """What `packed` was made of, finished. Keeps its arrays. `inner`: the linears of `packed.inner`."""


def pack(method: LinearMethod) -> PackedLinear:
    """A finished linear as it is stored; any of a CPU scheme can be."""
    assert isinstance(method, Packable), type(method)
    return method.packed()
