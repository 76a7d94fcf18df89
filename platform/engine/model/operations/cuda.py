"""Operations by triton: each is a few launches at most, and none waits for the device."""

import torch

from loraplex.lora.apply.batch import KINDS, LoraBatch
from loraplex.lora.apply.rounds import adapt_embeddings, adapt_own_logits, add_rounds
from loraplex.lora.files.manifest import EMBEDDING, HEAD
from loraplex.lora.kernels.cuda.own_norm import norm_with_own
from loraplex.lora.residency.cuda_limits import most_tokens
from loraplex.quant.linears.scheme import Float8Rows

from ...kernels.cuda.embedding import gather_rows
from ...kernels.cuda.gate import multiply_gate, multiply_gate_cast
from ...kernels.cuda.norm import add_rms_norm, add_rms_norm_cast
from ...kernels.cuda.sampling.layout import MOST_TOKENS


class CudaCasts:
    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, scale: float | None
    ) -> tuple[torch.Tensor, Float8Rows]:
        normed, values, scales = add_rms_norm_cast(x, residual, weight, eps, scale)
        return normed, (values, scales)

    def multiply_gate(self, gate_up: torch.Tensor, scale: float | None) -> tuple[torch.Tensor, Float8Rows]:
        product, values, scales = multiply_gate_cast(gate_up, scale=scale)
        return product, (values, scales)


class CudaOperations:
    """The adapters of a step are those of `batch.arrays`, a StepAdapters."""

    casts = CudaCasts()

    def embed(
        self, token_ids: torch.Tensor, table: torch.Tensor, dtype: torch.dtype, lora: LoraBatch | None
    ) -> torch.Tensor:
        x = gather_rows(token_ids, table, dtype)
        if lora is not None and EMBEDDING in lora.changed:
            adapt_embeddings(x, token_ids, lora.arrays.rounds, lora.table)
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
        table = lora.table
        own = (lora.arrays.slots, table.floats, table.vectors)
        norm_with_own(normed, residual, tokens, *own, layer, KINDS.index(kind), eps)
        return normed

    def multiply_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        return multiply_gate(gate_up)

    def add_lora(self, y: torch.Tensor, x: torch.Tensor, batch: LoraBatch, layer: int, kinds: tuple[str, ...]) -> None:
        add_rounds(y, x, batch.arrays.rounds, batch.table, layer, kinds, batch.has_vectors)

    def widen_logits(self, logits: torch.Tensor, lora: LoraBatch | None) -> torch.Tensor:
        if lora is None or not lora.own_logits:
            return logits.float()
        rows, vocabulary = logits.shape
        wide = torch.empty(rows, most_tokens(vocabulary, MOST_TOKENS), dtype=torch.float32, device=logits.device)
        wide[:, :vocabulary], wide[:, vocabulary:] = logits, float("-inf")
        return wide

    def adapt_logits(
        self, logits: torch.Tensor, hidden: torch.Tensor, rows: torch.Tensor, lora: LoraBatch
    ) -> torch.Tensor:
        if lora.own_logits:
            adapt_own_logits(logits, hidden, lora.arrays.head, lora.table)
        if HEAD in lora.changed:
            add_rounds(logits, hidden, lora.arrays.head, lora.table, 0, (HEAD,), has_vectors=True)
        return logits
