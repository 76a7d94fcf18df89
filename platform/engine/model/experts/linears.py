"""ExpertLinears: one linear of every expert of a layer, each over the rows of its tokens alone.

Shapes: E experts, P rows, those of an expert side by side.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray

from loraplex.lora.apply.apply import kernel_arrays
from loraplex.lora.apply.batch import LoraBatch, PageTable
from loraplex.quant.kernels.any_linear import KERNEL
from loraplex.quant.linears.coded import CodedLinear
from loraplex.quant.linears.scaled_input import Placed, ScaledInputLinear
from loraplex.quant.linears.scheme import LinearMethod

from ...batch import Batch
from ..kernels.expert_lora import add_expert_lora
from ..kernels.grouped import multiply_grouped
from ..linear import LoraLinear
from .rows import ExpertRows


class ExpertLinears:
    """On a CPU. One compiled call where any_linear takes all of them; else one call for each expert with rows."""

    def __init__(self, linears: Sequence[LoraLinear]) -> None:
        """linears [E], finished."""
        self.linears = linears
        methods = [linear.method for linear in linears]
        placed = [method for method in methods if _is_placed(method)]
        is_compiled = len(placed) == len(methods)
        where = [method.where() for method in placed]
        self._table = np.array(where) if is_compiled else None
        sizes = {(row[KERNEL], method.in_features): method for row, method in zip(where, placed, strict=True)}
        self._variants = list(sizes.values())
        """One of each kernel, for the scratch they need."""
        self._workers = torch.get_num_threads()
        self._places: Places | None = None
        """Known once there is an adapter."""

    def apply(self, x: torch.Tensor, rows: ExpertRows, batch: Batch, *, by_token: bool) -> torch.Tensor:
        """As of GroupedLinears; x is float32."""
        x = x[rows.tokens] if by_token else x
        y = self._multiply(x, rows)
        if batch.lora is not None:
            self._add_lora(y, x, rows, batch.lora)
        return y

    def _multiply(self, x: torch.Tensor, rows: ExpertRows) -> torch.Tensor:
        y = torch.empty(len(x), sum(self.linears[0].method.out_features))
        if self._table is None:
            for expert, first, last in rows.touched():
                y[first:last] = self.linears[expert].method.apply(x[first:last])
            return y
        most = int(rows.starts.diff().max())
        scratch = torch.empty(max(variant.scratch_bytes(most) for variant in self._variants), dtype=torch.uint8)
        multiply_grouped(self._table, rows.starts.numpy(), x.numpy(), y.numpy(), scratch.numpy(), self._workers)
        return y

    def _add_lora(self, y: torch.Tensor, x: torch.Tensor, rows: ExpertRows, lora: LoraBatch) -> None:
        places = self._places = self._places or _places(self.linears, lora.table)
        arena, offset, rank, scaling, *_, floats, vectors, slots = kernel_arrays(lora)
        add_expert_lora(
            y.numpy(),
            x.contiguous().numpy(),
            rows.starts.numpy(),
            rows.tokens.numpy(),
            *places,
            arena,
            offset,
            rank,
            scaling,
            floats,
            vectors,
            slots,
            lora.token_scale.numpy(),
            self._workers,
        )


class Places(NamedTuple):
    """Where adapters of the experts are in the page table."""

    kinds: NDArray[np.int64]
    """[E, members] its rows."""
    ordinals: NDArray[np.int64]
    """[E]"""
    firsts: NDArray[np.int64]
    """[members + 1] where each member's columns begin."""


def _places(linears: Sequence[LoraLinear], table: PageTable) -> Places:
    return Places(
        np.array([table.group(linear.kinds).rows for linear in linears]),
        np.array([table.ordinal(linear.kinds[0], linear.layer) for linear in linears]),
        np.cumsum([0, *linears[0].method.out_features]),
    )


class PlacedLinear(Placed, LinearMethod, Protocol):
    """A linear that any_linear takes."""


def _is_placed(method: LinearMethod) -> TypeGuard[PlacedLinear]:
    inner = method.method if isinstance(method, ScaledInputLinear) else method
    return isinstance(inner, Placed) and not (isinstance(inner, CodedLinear) and not inner.fits_any_linear)
