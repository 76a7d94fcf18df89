"""DeviceLinears: one linear of every expert of a layer on a CUDA device, in one launch, and the adapters' part."""

from collections.abc import Sequence

import torch

from loraplex.lora.apply.batch import LoraBatch, PageTable
from loraplex.lora.kernels.cuda.entry import add_lora, scale_outputs
from loraplex.quant.linears.cuda_experts import CudaExperts

from ...batch import Batch
from ..linear import LoraLinear
from .device_rows import DeviceRows


class ExpertKinds:
    """Rows of the page table of the experts of a layer; known once there is an adapter."""

    def __init__(self, *groups: Sequence[LoraLinear]) -> None:
        """Of each group [E]."""
        self._groups = groups
        self._rows: list[torch.Tensor] = []

    def rows(self, table: PageTable) -> list[torch.Tensor]:
        """[E, modules of all groups] int32, then [E, members] of each group."""
        if not self._rows:
            own = [[table.group(linear.kinds).rows for linear in group] for group in self._groups]
            joined = [sum(rows, ()) for rows in zip(*own, strict=True)]
            self._rows = [torch.tensor(rows, dtype=torch.int32).to(table.arena.device) for rows in (joined, *own)]
        return self._rows


class DeviceLinears:
    def __init__(self, linears: Sequence[LoraLinear], kinds: ExpertKinds, group: int) -> None:
        """linears [E], finished: those of group `group` of `kinds`. ValueError for weights that no kernel takes."""
        self.linears = linears
        self._product = CudaExperts([linear.method for linear in linears])
        self._kinds = kinds
        self._group = group

    def apply(self, x: torch.Tensor, rows: DeviceRows, batch: Batch, *, by_token: bool) -> torch.Tensor:
        """As of GroupedLinears."""
        x = x.contiguous()
        y = self._product.apply(x, rows.grouped, by_token=by_token)
        if batch.lora is not None and batch.lora.on_experts:
            self._add_lora(y, x, rows, batch.lora, by_token)
        return y

    def _add_lora(self, y: torch.Tensor, x: torch.Tensor, rows: DeviceRows, lora: LoraBatch, by_token: bool) -> None:
        first, table = self.linears[0], lora.table
        everything, *groups = self._kinds.rows(table)
        on, widths = rows.on_experts(groups[self._group], by_token), first.method.out_features
        layer = table.ordinal(first.kinds[0], first.layer)  # of all experts: a layer has them all
        lists = rows.list_adapters(lora, everything, layer)
        for step in lists:
            add_lora(y, x, step, len(step.chunks), layer, (), widths, on)
        for step in lists if lora.has_vectors else ():
            scale_outputs(y, step, table.floats, table.vectors, len(step.chunks), layer, (), widths, on)


def device_linears(inputs: Sequence[LoraLinear], outputs: Sequence[LoraLinear]) -> tuple[DeviceLinears, DeviceLinears]:
    kinds = ExpertKinds(inputs, outputs)
    return DeviceLinears(inputs, kinds, 0), DeviceLinears(outputs, kinds, 1)
