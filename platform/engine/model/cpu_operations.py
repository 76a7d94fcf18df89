"""Operations by numba and torch."""

import torch
import torch.nn.functional as F

from loraplex.lora.apply import add_lora
from loraplex.lora.batch import LoraBatch

from ..kernels.norm import add_rms_norm
from ..kernels.silu import silu_multiply


class CpuOperations:
    def gather_rows(self, token_ids: torch.Tensor, table: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return F.embedding(token_ids.clamp(max=len(table) - 1), table).to(dtype)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return add_rms_norm(x, residual, weight, eps)

    def multiply_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        return silu_multiply(gate_up)

    def add_lora(self, y: torch.Tensor, x: torch.Tensor, batch: LoraBatch, layer: int, kinds: tuple[str, ...]) -> None:
        add_lora(y, x, batch, layer, kinds)
