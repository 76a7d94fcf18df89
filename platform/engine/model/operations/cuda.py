"""Operations by triton: each is a few launches at most, and none waits for the device. The adapters of a step are those
of `batch.arrays`, a StepAdapters."""

from collections.abc import Mapping
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
from ...kernels.cuda.experts import routing as kernels
from ...kernels.cuda.experts.sums import add_shared, sum_experts
from ...kernels.cuda.gate import multiply_gate, multiply_gate_cast
from ...kernels.cuda.norm import add_rms_norm, add_rms_norm_cast
from ...kernels.cuda.sampling.layout import MOST_TOKENS
from ..description.feed_forward import RoutingSpec, Scores
from ..description.spec import Activation
from ..experts.device_linears import device_linears
from ..experts.device_rows import DeviceRows, group_experts
from . import plain
from .operations import Casts, ExpertOperations, Operations
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


GATED: Final = ("silu", "gelu_tanh", "clamped_swiglu")
"""Activations that the kernel has."""


def _multiply_gate(gate_up: Tensor, activation: Activation) -> Tensor:
    if activation in GATED:
        return multiply_gate(gate_up, activation)
    return plain.multiply_gate(gate_up, activation)


def _multiply_gate_cast(gate_up: Tensor, activation: Activation, scale: float | None) -> tuple[Tensor, Float8Rows]:
    if activation not in GATED:
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


SCORES: Final[Mapping[Scores, int]] = {
    "softmax": kernels.SOFTMAX.value,
    "sigmoid": kernels.SIGMOID.value,
    "softmax_of_chosen": kernels.SOFTMAX_OF_CHOSEN.value,
}


def _route(logits: Tensor, correction: Tensor, factors: Tensor | None, routing: RoutingSpec) -> tuple[Tensor, Tensor]:
    groups = routing.num_groups, routing.groups_per_token
    how = SCORES[routing.scores], routing.experts_per_token, routing.normalizes, routing.scale
    return kernels.route(logits.contiguous(), correction, factors, *how, *groups)


def _add_up(y: Tensor, rows: DeviceRows, weights: Tensor) -> Tensor:
    return sum_experts(y, rows.places, weights)


def _widen_logits(logits: Tensor, lora: LoraBatch | None) -> Tensor:
    if lora is None or not (lora.own_logits or HEAD in lora.changed):
        return logits  # the sampler reads any dtype
    if not lora.own_logits:
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
    experts=ExpertOperations(_route, group_experts, device_linears, _add_up, add_shared),
    casts=Casts(add_rms_norm=_add_rms_norm_cast, multiply_gate=_multiply_gate_cast),
)
