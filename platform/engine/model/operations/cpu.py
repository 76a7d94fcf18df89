"""Operations by numba and torch."""

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from loraplex.lora.apply import vocabulary
from loraplex.lora.apply.apply import add_lora
from loraplex.lora.apply.batch import LoraBatch
from loraplex.lora.apply.norms import replace_norms

from ...kernels import activations
from ...kernels.norm import add_rms_norm, layer_norm, rms_norm
from ...kernels.silu import LANES, silu_multiply
from ..description.spec import Activation
from . import plain
from .operations import Operations


def _embed(token_ids: Tensor, table: Tensor, dtype: torch.dtype, lora: LoraBatch | None) -> Tensor:
    x = F.embedding(token_ids.clamp(max=len(table) - 1), table).to(dtype)
    embedded = None if lora is None else vocabulary.embed(token_ids, table, lora)
    if embedded is not None:
        x[embedded.tokens] = embedded.values.to(dtype)
    return x


def _norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    if bias is None:
        return rms_norm(x, weight, eps)
    return (plain.layer_norm if x.shape[1] % LANES else layer_norm)(x, weight, bias, eps)


def _multiply_gate(gate_up: Tensor, activation: Activation) -> Tensor:
    if activation == "silu":
        return silu_multiply(gate_up)
    if _has_kernel(activation, gate_up.shape[1] // 2):
        return activations.activate(gate_up, activations.CODES[activation], is_gated=True)
    gate, up = gate_up.chunk(2, dim=-1)
    return plain.activate(gate, activation) * up


def _activate(x: Tensor, activation: Activation) -> Tensor:
    if _has_kernel(activation, x.shape[1]):
        return activations.activate(x, activations.CODES[activation], is_gated=False)
    return plain.activate(x, activation)


def _has_kernel(activation: Activation, size: int) -> bool:
    return activation in activations.CODES and size % LANES == 0


OPERATIONS: Final = Operations(
    embed=_embed,
    add_rms_norm=add_rms_norm,
    replace_norms=replace_norms,
    multiply_gate=_multiply_gate,
    activate=_activate,
    norm=_norm,
    add_lora=add_lora,
    widen_logits=lambda logits, lora: logits.float(),
    adapt_logits=vocabulary.adapt_logits,
)
