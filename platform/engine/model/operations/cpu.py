"""Operations by numba and torch."""

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from loraplex.lora.apply import vocabulary
from loraplex.lora.apply.apply import add_lora
from loraplex.lora.apply.batch import LoraBatch
from loraplex.lora.apply.norms import replace_norms

from ...kernels.norm import add_rms_norm, rms_norm
from ...kernels.silu import silu_multiply
from ..description.spec import Activation
from .operations import Operations
from .plain import activate, layer_norm


def _embed(token_ids: Tensor, table: Tensor, dtype: torch.dtype, lora: LoraBatch | None) -> Tensor:
    x = F.embedding(token_ids.clamp(max=len(table) - 1), table).to(dtype)
    embedded = None if lora is None else vocabulary.embed(token_ids, table, lora)
    if embedded is not None:
        x[embedded.tokens] = embedded.values.to(dtype)
    return x


def _norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return rms_norm(x, weight, eps) if bias is None else layer_norm(x, weight, bias, eps)


def _replace_norms(
    normed: Tensor, residual: Tensor, tokens: Tensor | None, lora: LoraBatch, layer: int, kind: str, eps: float,
    is_layer_norm: bool,
) -> Tensor:  # fmt: skip
    everyone = torch.arange(len(normed)) if tokens is None else tokens
    return replace_norms(normed, residual, everyone, lora, layer, kind, eps, is_layer_norm)


def _multiply_gate(gate_up: Tensor, activation: Activation) -> Tensor:
    if activation == "silu":
        return silu_multiply(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return activate(gate, activation) * up


OPERATIONS: Final = Operations(
    embed=_embed,
    add_rms_norm=add_rms_norm,
    replace_norms=_replace_norms,
    multiply_gate=_multiply_gate,
    activate=activate,
    norm=_norm,
    add_lora=add_lora,
    widen_logits=lambda logits, lora: logits.float(),
    adapt_logits=vocabulary.adapt_logits,
)
