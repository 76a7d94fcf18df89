"""Operations by numba and torch."""

import torch
import torch.nn.functional as F

from loraplex.lora.apply.apply import add_lora
from loraplex.lora.apply.batch import LoraBatch
from loraplex.lora.apply.norms import replace_norms
from loraplex.lora.apply.vocabulary import adapt_logits, embed

from ...kernels.norm import add_rms_norm
from ...kernels.silu import silu_multiply


class CpuOperations:
    casts = None

    def embed(
        self, token_ids: torch.Tensor, table: torch.Tensor, dtype: torch.dtype, lora: LoraBatch | None
    ) -> torch.Tensor:
        x = F.embedding(token_ids.clamp(max=len(table) - 1), table).to(dtype)
        embedded = None if lora is None else embed(token_ids, table, lora)
        if embedded is not None:
            x[embedded.tokens] = embedded.values.to(dtype)
        return x

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
        everyone = torch.arange(len(normed)) if tokens is None else tokens
        return replace_norms(normed, residual, everyone, lora, layer, kind, eps)

    def multiply_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        return silu_multiply(gate_up)

    def add_lora(self, y: torch.Tensor, x: torch.Tensor, batch: LoraBatch, layer: int, kinds: tuple[str, ...]) -> None:
        add_lora(y, x, batch, layer, kinds)

    def widen_logits(self, logits: torch.Tensor, lora: LoraBatch | None) -> torch.Tensor:
        return logits.float()

    def adapt_logits(
        self, logits: torch.Tensor, hidden: torch.Tensor, rows: torch.Tensor, lora: LoraBatch
    ) -> torch.Tensor:
        return adapt_logits(logits, hidden, rows, lora)
