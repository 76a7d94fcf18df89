"""ExpertLinears: one linear of every expert of a layer, each over the rows of its tokens alone.

Shapes: E experts, P rows, those of an expert side by side.
"""

from collections.abc import Sequence
from typing import Protocol, TypeGuard

import numpy as np
import torch

from loraplex.quant.kernels.any_linear import KERNEL
from loraplex.quant.linears.coded import CodedLinear
from loraplex.quant.linears.scaled_input import Placed, ScaledInputLinear
from loraplex.quant.linears.scheme import LinearMethod

from ..kernels.grouped import multiply_grouped
from .rows import ExpertRows


class ExpertLinears:
    """On a CPU. One compiled call where any_linear takes all of them; else one call for each expert with rows."""

    def __init__(self, methods: Sequence[LinearMethod]) -> None:
        """methods [E], finished."""
        self.methods = methods
        placed = [method for method in methods if _is_placed(method)]
        is_compiled = len(placed) == len(methods)
        self._table = np.array([method.where() for method in placed]) if is_compiled else None
        sizes = {(method.where()[KERNEL], method.in_features): method for method in placed}
        self._kinds = list(sizes.values())
        """One of each kernel, for the scratch they need."""
        self._workers = torch.get_num_threads()

    def apply(self, x: torch.Tensor, rows: ExpertRows) -> torch.Tensor:
        """x [P, inputs] float32, each row by its expert's linear -> [P, outputs]."""
        y = torch.empty(len(x), sum(self.methods[0].out_features))
        if self._table is None:
            for expert, first, last in rows.touched():
                y[first:last] = self.methods[expert].apply(x[first:last])
            return y
        most = int(rows.starts.diff().max())
        scratch = torch.empty(max(kind.scratch_bytes(most) for kind in self._kinds), dtype=torch.uint8)
        multiply_grouped(self._table, rows.starts.numpy(), x.numpy(), y.numpy(), scratch.numpy(), self._workers)
        return y


class PlacedLinear(Placed, LinearMethod, Protocol):
    """A linear that any_linear takes."""


def _is_placed(method: LinearMethod) -> TypeGuard[PlacedLinear]:
    inner = method.method if isinstance(method, ScaledInputLinear) else method
    return isinstance(inner, Placed) and not (isinstance(inner, CodedLinear) and not inner.fits_any_linear)
