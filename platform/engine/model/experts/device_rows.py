"""DeviceRows: which tokens of a step go to which expert of a layer, on a CUDA device.

Shapes: T tokens with K of E experts each make P = T K rows, those of an expert side by side.
"""

from dataclasses import dataclass

import torch

from loraplex.lora.apply.batch import LoraBatch, PageTable
from loraplex.lora.kernels.cuda.entry import OnExperts, StepTensors
from loraplex.lora.kernels.cuda.expert_keys import find_keys
from loraplex.lora.kernels.cuda.tiles import ROWS, bound_chunks, intermediate_elements
from loraplex.quant.kernels.cuda.expert_linear import GroupedRows
from loraplex.quant.kernels.cuda.expert_tiles import bound_pieces, choose_piece

from ...kernels.cuda.experts.rows import group_rows


@dataclass(slots=True)
class DeviceRows:
    grouped: GroupedRows
    places: torch.Tensor
    """[P] int32, the row of each pair."""
    adapters: list[StepTensors] | None = None
    """Of each round, made by the first linear that adds them: (expert, adapter) in the place of an adapter."""

    def list_adapters(self, lora: LoraBatch, kinds: torch.Tensor, layer: int) -> list[StepTensors]:
        """kinds [E, modules]: all rows of the page table of each expert; layer: which of the kinds' modules it is."""
        if self.adapters is None:
            self.adapters = [self._list(lora.table, own.slots, own.factors, kinds, layer) for own in lora.arrays.rounds]
        return self.adapters

    def _list(
        self, table: PageTable, slots: torch.Tensor, factors: torch.Tensor, kinds: torch.Tensor, layer: int
    ) -> StepTensors:
        keys = find_keys(self.grouped.experts, slots, table.rank, table.vectors, kinds, layer)
        count, pages = len(keys), table.offset.shape[2]
        rows = group_rows(keys, ROWS, bound_chunks(count, len(kinds) * len(table.offset)))
        room = torch.empty(intermediate_elements(count, pages), dtype=torch.float32, device=keys.device)
        places = table.arena, table.offset, table.rank, table.scaling
        return StepTensors(rows.pieces, rows.pairs, factors, room, *places)

    def on_experts(self, kinds: torch.Tensor, by_token: bool) -> OnExperts:
        return OnExperts(kinds, self.places, self.grouped.per_token, by_token)


def group_experts(experts: torch.Tensor, num_experts: int) -> DeviceRows:
    """experts [T, K] int32."""
    tokens, per_token = experts.shape
    most = choose_piece(tokens, per_token, num_experts)
    rows = group_rows(experts.view(-1), most, bound_pieces(tokens, per_token, num_experts, most))
    return DeviceRows(GroupedRows(rows.pieces, rows.pairs, most, per_token, experts), rows.places)
