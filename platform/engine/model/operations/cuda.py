"""Operations by triton: each is a few launches at most, and none waits for the device. The adapters of a step are those
of `batch.arrays`, a StepAdapters."""

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from loraplex.lora.apply.batch import LoraBatch
from loraplex.lora.apply.rounds import adapt_embeddings, adapt_own_logits, add_rounds
from loraplex.lora.files.manifest import EMBEDDING, HEAD
from loraplex.lora.kernels.cuda.own_norm import norm_with_own
from loraplex.lora.residency.cuda_limits import most_tokens
from loraplex.quant.kernels.cuda.cast import cast_rows
from loraplex.quant.linears.scheme import Float8Rows

from ...kernels.cuda.embedding import gather_rows
from ...kernels.cuda.gate import multiply_gate, multiply_gate_cast
from ...kernels.cuda.norm import add_rms_norm, add_rms_norm_cast
from ...kernels.cuda.sampling.layout import MOST_TOKENS
from ..description.spec import Activation
from . import plain
from .operations import Casts, Operations
from .plain import activate, gate, layer_norm


def _add_rms_norm_cast(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: float | None
) -> tuple[Tensor, Float8Rows]:
    normed, values, scales = add_rms_norm_cast(x, residual, weight, eps, scale)
    return normed, (values, scales)


def _norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    if bias is None:
        return F.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)
    return layer_norm(x, weight, bias, eps)


def _multiply_gate(gate_up: Tensor, activation: Activation) -> Tensor:
    if activation in ("silu", "gelu_tanh"):
        return multiply_gate(gate_up, activation)
    return plain.multiply_gate(gate_up, activation)


def _multiply_gate_cast(gate_up: Tensor, activation: Activation, scale: float | None) -> tuple[Tensor, Float8Rows]:
    if activation not in ("silu", "gelu_tanh"):
        product = _multiply_gate(gate_up, activation)
        return product, cast_rows(product, scale)
    product, values, scales = multiply_gate_cast(gate_up, activation, scale)
    return product, (values, scales)


def _embed(token_ids: Tensor, table: Tensor, dtype: torch.dtype, lora: LoraBatch | None) -> Tensor:
    x = gather_rows(token_ids, table, dtype)
    if lora is not None and EMBEDDING in lora.changed:
        adapt_embeddings(x, token_ids, lora.arrays.rounds, lora.table)
    return x


def _replace_norms(
    normed: Tensor, residual: Tensor, tokens: Tensor | None, lora: LoraBatch, layer: int, kind: str, eps: float,
    is_layer_norm: bool,
) -> Tensor:  # fmt: skip
    own = (lora.arrays.slots, lora.table.floats, lora.table.vectors)
    place = lora.table.ordinal(kind, layer), lora.table.row(kind)
    norm_with_own(normed, residual, tokens, *own, *place, eps, is_layer_norm)
    return normed


def _add_lora(y: Tensor, x: Tensor, batch: LoraBatch, layer: int, kinds: tuple[str, ...]) -> None:
    add_rounds(y, x, batch.arrays.rounds, batch.table, layer, kinds, batch.has_vectors)


def _widen_logits(logits: Tensor, lora: LoraBatch | None) -> Tensor:
    if lora is None or not lora.own_logits:
        return logits.float()
    rows, vocabulary = logits.shape
    wide = torch.empty(rows, most_tokens(vocabulary, MOST_TOKENS), dtype=torch.float32, device=logits.device)
    wide[:, :vocabulary], wide[:, vocabulary:] = logits, float("-inf")
    return wide


def _adapt_logits(logits: Tensor, hidden: Tensor, rows: Tensor, lora: LoraBatch) -> Tensor:
    if lora.own_logits:
        adapt_own_logits(logits, hidden, lora.arrays.head, lora.table)
    if HEAD in lora.changed:
        add_rounds(logits, hidden, lora.arrays.head, lora.table, 0, (HEAD,), has_vectors=True)
    return logits


OPERATIONS: Final = Operations(
    embed=_embed,
    add_rms_norm=add_rms_norm,
    replace_norms=_replace_norms,
    norm=_norm,
    multiply_gate=_multiply_gate,
    activate=activate,
    gate=gate,
    add_lora=_add_lora,
    widen_logits=_widen_logits,
    adapt_logits=_adapt_logits,
    casts=Casts(add_rms_norm=_add_rms_norm_cast, multiply_gate=_multiply_gate_cast),
)
