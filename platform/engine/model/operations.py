"""Operations: what a layer computes beside linears and attention. One file for each kind of device.

Shapes: T new tokens, C hidden size, I intermediate size, V tokens of the vocabulary.
"""

from typing import Protocol

import torch

from loraplex.lora.batch import LoraBatch


class Operations(Protocol):
    def gather_rows(self, token_ids: torch.Tensor, table: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """token_ids [T] int64, table [V, C] -> [T, C] in `dtype`; whatever for ids outside of the table."""

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """residual += x, in place; then the RMS norm of the residual times weight [C], [T, C] in x's dtype."""

    def multiply_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """gate_up [T, 2 I], gate first -> silu(gate) * up [T, I]."""

    def add_lora(self, y: torch.Tensor, x: torch.Tensor, batch: LoraBatch, layer: int, kinds: tuple[str, ...]) -> None:
        """Add the adapters' part to y [T, sum of the kinds' out_features], of x [T, in], in place."""


def cpu_operations() -> Operations:
    from .cpu_operations import CpuOperations

    return CpuOperations()


def cuda_operations() -> Operations:
    from .cuda_operations import CudaOperations

    return CudaOperations()
