"""PackedLinear: a finished linear as plain facts and arrays, from which the same one is made again without packing."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import torch

from .scheme import LinearMethod


@dataclass(frozen=True, slots=True)
class PackedLinear:
    method: str
    """Name of the class that made it."""
    in_features: int
    out_features: tuple[int, ...]
    facts: dict[str, str | int] = field(default_factory=dict)
    """What its arrays do not say."""
    arrays: dict[str, torch.Tensor] = field(default_factory=dict)
    """Contiguous, as they lie in memory, of the host or of a device."""
    inner: tuple["PackedLinear", ...] = ()
    """Of the linears that it is made of."""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values()) + sum(one.nbytes for one in self.inner)


class Packable(LinearMethod, Protocol):
    """A LinearMethod that can be stored."""

    inner: tuple[LinearMethod, ...]
    """The linears that it is made of."""

    def packed(self) -> PackedLinear:
        """After finish(), without the inner ones. Shares memory with the linear."""

    @classmethod
    def restored(cls, packed: PackedLinear, inner: tuple[Any, ...]) -> Self:
        """What `packed` was made of, finished. Keeps its arrays. `inner`: the linears of `packed.inner`."""


Fill = Callable[[memoryview], None]
"""Writes as many of an array's bytes as there is room for, in their order."""
Land = Callable[[torch.dtype, list[int], Fill], torch.Tensor]
"""(dtype, shape, fill) -> an array where the kernels expect it, filled from its first byte to its last."""


@dataclass(frozen=True, slots=True)
class PackedForm:
    """How finished linears of one kind of device are stored."""

    identity: str
    """In words whatever of the machine decides how they are packed."""
    methods: tuple[type[Packable], ...]
    """Those that are; whatever has another one in it comes out of the checkpoint at every start."""
    land: Land

    def pack(self, method: LinearMethod) -> PackedLinear | None:
        """A finished linear as it is stored; None for one that is not."""
        if not isinstance(method, self.methods):
            return None
        inner = [self.pack(one) for one in method.inner]
        stored = tuple(one for one in inner if one is not None)
        return replace(method.packed(), inner=stored) if len(stored) == len(inner) else None

    def restore(self, packed: PackedLinear) -> LinearMethod:
        """The linear that `packed` was made of."""
        [kind] = [kind for kind in self.methods if kind.__name__ == packed.method]
        return kind.restored(packed, tuple(self.restore(inner) for inner in packed.inner))
