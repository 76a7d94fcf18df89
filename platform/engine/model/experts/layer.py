"""Experts: a feed-forward of which each token computes a few parts.

Shapes: T tokens, C hidden size, I inner size, E experts, K experts of a token; P = T K rows, those of an expert side by
side.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from loraplex.quant.linears.scheme import Float8Rows

from ...batch import Batch
from ..description.feed_forward import Activation, RoutingSpec
from ..layers import FeedForward
from ..linear import LoraLinear
from ..operations.operations import ExpertOperations, Operations

if TYPE_CHECKING:
    from .linears import ExpertLinears


@dataclass(slots=True)
class Experts:
    router: LoraLinear
    """From C to a logit for each expert, in float32."""
    routing: RoutingSpec
    correction: torch.Tensor
    """[E] float32; [0] where there is none."""
    inputs: "ExpertLinears"
    """Gate and up of each expert."""
    outputs: "ExpertLinears"
    operations: Operations
    activation: Activation
    shared: FeedForward | None = None
    shared_gate: LoraLinear | None = None
    """From C to one number, in float32."""

    def apply(self, x: torch.Tensor, cast: Float8Rows | None, batch: Batch) -> torch.Tensor:
        """x [T, C] -> [T, C]."""
        logits = self.router.apply(x.float(), batch)
        experts, weights = self._kernels.route(logits, self.correction, self.routing)
        rows = self._kernels.group(experts, self.routing.num_experts)
        gate_up = self.inputs.apply(x[rows.tokens], rows, batch)
        inner = self.operations.multiply_gate(gate_up, self.activation)
        y = self._kernels.add_up(self.outputs.apply(inner, rows, batch), rows, weights)
        if self.shared is not None:
            gate = None if self.shared_gate is None else self.shared_gate.apply(x.float(), batch)
            self._kernels.add_shared(y, self.shared.apply(x, None, batch), gate)
        return y

    @property
    def reader(self) -> LoraLinear:
        return self.router

    @property
    def inner_size(self) -> int:
        return self.outputs.linears[0].method.in_features

    def linears(self) -> tuple[LoraLinear, ...]:
        shared = () if self.shared is None else self.shared.linears()
        return self.router, *shared, *(() if self.shared_gate is None else (self.shared_gate,))

    def expert_linears(self) -> tuple[LoraLinear, ...]:
        return *self.inputs.linears, *self.outputs.linears

    @property
    def _kernels(self) -> ExpertOperations:
        assert self.operations.experts is not None, "refused at the start"
        return self.operations.experts
