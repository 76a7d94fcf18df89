"""Operations by triton: each is one launch, or two for adapters, and none waits for the device."""

import torch

from loraplex.lora.batch import LoraBatch
from loraplex.lora.rounds import add_rounds

from ..kernels.cuda.embedding import gather_rows
from ..kernels.cuda.gate import multiply_gate
from ..kernels.cuda.norm import add_rms_norm


class CudaOperations:
    """The adapters of a step are those of `batch.arrays`, StepLists by round."""

    def embed(
        self, token_ids: torch.Tensor, table: torch.Tensor, dtype: torch.dtype, lora: LoraBatch | None
    ) -> torch.Tensor:
        return gather_rows(token_ids, table, dtype)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return add_rms_norm(x, residual, weight, eps)

    def replace_norms(
        self,
        normed: torch.Tensor,
        residual: torch.Tensor,
        tokens: torch.Tensor | None,
        lora: LoraBatch,
        layer: int,
        kind: str,
        eps: float,
    ) -> torch.Tensor:
        raise AssertionError("cuda_limits.py refuses adapters with norms")

    def multiply_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        return multiply_gate(gate_up)

    def add_lora(self, y: torch.Tensor, x: torch.Tensor, batch: LoraBatch, layer: int, kinds: tuple[str, ...]) -> None:
        add_rounds(y, x, batch.arrays, batch.table, layer, kinds, batch.has_vectors)

    def adapt_logits(
        self, logits: torch.Tensor, hidden: torch.Tensor, rows: torch.Tensor, lora: LoraBatch
    ) -> torch.Tensor:
        return logits
