"""Operations by numba and torch."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

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
from ..description.feed_forward import RoutingSpec, Scores
from ..description.spec import Activation
from ..experts.linears import ExpertLinears
from ..experts.rows import ExpertRows
from ..kernels import routing as kernels
from . import plain
from .operations import ExpertOperations, Operations

if TYPE_CHECKING:
    from ..linear import LoraLinear


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
    return plain.multiply_gate(gate_up, activation)


def _activate(x: Tensor, activation: Activation) -> Tensor:
    if _has_kernel(activation, x.shape[1]):
        return activations.activate(x, activations.CODES[activation], is_gated=False)
    return plain.activate(x, activation)


def _gate(x: Tensor, gates: Tensor) -> Tensor:
    return activations.gate_by_sigmoid(x, gates) if x.shape[1] % LANES == 0 else plain.gate(x, gates)


def _has_kernel(activation: Activation, size: int) -> bool:
    return activation in activations.CODES and size % LANES == 0


SCORES: Final[Mapping[Scores, int]] = {
    "softmax": kernels.SOFTMAX,
    "sigmoid": kernels.SIGMOID,
    "softmax_of_chosen": kernels.SOFTMAX_OF_CHOSEN,
}


def _route(logits: Tensor, correction: Tensor, factors: Tensor | None, routing: RoutingSpec) -> tuple[Tensor, Tensor]:
    shape = len(logits), routing.experts_per_token
    experts, weights = torch.empty(shape, dtype=torch.int64), torch.empty(shape)
    kernels.route(
        logits.numpy(),
        correction.numpy(),
        SCORES[routing.scores],
        routing.normalizes,
        routing.scale,
        routing.num_groups,
        routing.groups_per_token,
        experts.numpy(),
        weights.numpy(),
    )
    return experts, weights if factors is None else weights * factors[experts]


def _group(experts: Tensor, num_experts: int) -> ExpertRows:
    count = experts.numel()
    starts, pairs, places = (torch.empty(size, dtype=torch.int64) for size in (num_experts + 1, count, count))
    kernels.group_pairs(experts.flatten().numpy(), starts.numpy(), pairs.numpy(), places.numpy())
    return ExpertRows(starts, pairs, places, experts.shape[1])


def _linears(inputs: "Sequence[LoraLinear]", outputs: "Sequence[LoraLinear]") -> tuple[ExpertLinears, ExpertLinears]:
    return ExpertLinears(inputs), ExpertLinears(outputs)


def _add_up(y: Tensor, rows: ExpertRows, weights: Tensor) -> Tensor:
    output = torch.empty(len(weights), y.shape[1])
    kernels.sum_experts(y.numpy(), rows.places.numpy(), weights.numpy(), output.numpy())
    return output


def _add_shared(y: Tensor, shared: Tensor, gate: Tensor | None) -> None:
    factors = torch.empty(0) if gate is None else gate.flatten()
    kernels.add_shared(y.numpy(), shared.numpy(), factors.numpy())


OPERATIONS: Final = Operations(
    embed=_embed,
    add_rms_norm=add_rms_norm,
    replace_norms=replace_norms,
    multiply_gate=_multiply_gate,
    activate=_activate,
    gate=_gate,
    norm=_norm,
    add_lora=add_lora,
    widen_logits=lambda logits, lora: logits.float(),
    adapt_logits=vocabulary.adapt_logits,
    experts=ExpertOperations(_route, _group, _linears, _add_up, _add_shared),
)
