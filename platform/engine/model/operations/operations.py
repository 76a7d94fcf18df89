"""Operations: what a layer computes beside linears and attention. One file for each kind of device.

Shapes: T new tokens, C hidden size, I intermediate size, V tokens of the vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from loraplex.lora.apply.batch import LoraBatch
from loraplex.quant.linears.scheme import Float8Rows

from ..description.feed_forward import RoutingSpec
from ..description.spec import Activation

if TYPE_CHECKING:
    from ...batch import Batch
    from ..linear import LoraLinear


@dataclass(frozen=True, slots=True)
class Casts:
    """Operations whose result is cast to float8 in the same launch, for a linear that reads it so. `scale`: as of
    Float8Inputs. Each answers the result as `Operations` does, for adapters, and the cast, bit for bit that of
    `quant/kernels/cuda/cast.py`."""

    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float, float | None], tuple[Tensor, Float8Rows]]
    """(x, residual, weight, eps, scale)"""
    multiply_gate: Callable[[Tensor, Activation, float | None], tuple[Tensor, Float8Rows]]
    """(gate_up, activation, scale)"""


Rows = Any
"""Which rows are of which expert, as the operations and linears of one kind of device have it."""


class GroupedLinears(Protocol):
    """One linear of every expert of a layer, each over the rows of its tokens alone."""

    linears: "Sequence[LoraLinear]"

    def apply(self, x: Tensor, rows: Rows, batch: "Batch", *, by_token: bool) -> Tensor:
        """x [T, inputs] if `by_token`, else [P, inputs] -> [P, outputs]: each row by its expert's linear and what the
        adapters of its token change there. Adapters read x as it is."""


@dataclass(frozen=True, slots=True)
class ExpertOperations:
    """Of a layer with experts: E experts, K of them for each token, P = T K rows."""

    route: Callable[[Tensor, Tensor, Tensor | None, RoutingSpec], tuple[Tensor, Tensor]]
    """(logits, correction, factors, routing): logits [T, E], correction [E] or [0], factors of the weights [E] or None,
    all float32 -> the experts of each token
    [T, K] and their weights [T, K] float32: the same bits for a token in every batch."""
    group: Callable[[Tensor, int], Rows]
    """(experts [T, K], E) -> the rows of each expert."""
    linears: "Callable[[Sequence[LoraLinear], Sequence[LoraLinear]], tuple[GroupedLinears, GroupedLinears]]"
    """Of the experts' inputs and of their outputs [E], finished. ValueError for weights that no kernel takes."""
    add_up: Callable[[Tensor, Rows, Tensor], Tensor]
    """(y, rows, weights): y [P, C] of the rows, weights [T, K] -> [T, C], each token's sum in the order of its
    experts."""
    add_shared: Callable[[Tensor, Tensor, Tensor | None], None]
    """(y, shared, gate): y [T, C] += sigmoid(gate [T, 1]) * shared [T, C], in place; without a gate += shared."""


@dataclass(frozen=True, slots=True)
class Operations:
    embed: Callable[[Tensor, Tensor, torch.dtype, LoraBatch | None], Tensor]
    """(token_ids [T] int64, table [V, C], dtype, lora) -> [T, C] in `dtype`, as the tokens' adapters have them;
    whatever for ids that neither the table nor the adapter has."""
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    """(x, residual, weight, eps): residual += x, in place; then the RMS norm of the residual times weight [C], [T, C]
    in x's dtype."""
    norm: Callable[[Tensor, Tensor, Tensor | None, float], Tensor]
    """(x, weight, bias, eps): the RMS norm of x [T, C] times weight [C]; with a bias the LayerNorm; in x's dtype."""
    replace_norms: Callable[[Tensor, Tensor, Tensor | None, LoraBatch, int, str, float, bool], Tensor]
    """(normed, residual, tokens, lora, layer, kind, eps, is_layer_norm): the norm `kind` of residual [N, C], rows of
    the tokens `tokens` [N] (None: of all), with the weight (of a LayerNorm with the bias too) that each one's adapter
    brings, if any; else as in normed [N, C], which may be changed."""
    multiply_gate: Callable[[Tensor, Activation], Tensor]
    """(gate_up, activation): gate_up [T, 2 I], gate first -> activation(gate) * up [T, I]."""
    activate: Callable[[Tensor, Activation], Tensor]
    """(x, activation) -> activation(x) [T, I]."""
    gate: Callable[[Tensor, Tensor], Tensor]
    """(x, gates): x * sigmoid(gates), both [T, I] contiguous. May work in place."""
    add_lora: Callable[[Tensor, Tensor, LoraBatch, int, tuple[str, ...]], None]
    """(y, x, batch, layer, kinds): add the adapters' part to y [T, sum of the kinds' out_features], of x [T, in], in
    place."""
    widen_logits: Callable[[Tensor, LoraBatch | None], Tensor]
    """(logits, lora): logits [R, V] of the base in any float dtype -> where `adapt_logits` changes any, float32 with
    room [R, at least V] for it; else float32 or as they are."""
    adapt_logits: Callable[[Tensor, Tensor, Tensor, LoraBatch], Tensor]
    """(logits, hidden, rows, lora): what `widen_logits` gave for hidden [R, C], the tokens `rows` [R] -> as their
    adapters have them, at least as wide as the largest vocabulary; -inf where a row's model has no such token. May work
    in place."""
    experts: ExpertOperations
    casts: Casts | None = None
    """None: linears cast by themselves, where they do."""


def cpu_operations() -> Operations:
    from .cpu import OPERATIONS

    return OPERATIONS


def cuda_operations() -> Operations:
    from .cuda import OPERATIONS

    return OPERATIONS
