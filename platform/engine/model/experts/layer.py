"""Experts: a feed-forward of which each token computes a few parts.

Shapes: T tokens, C hidden size, I inner size, E experts, K experts of a token; P = T K rows, those of an expert side by
side.
"""

from dataclasses import dataclass

import torch

from loraplex.quant.linears.scheme import Float8Rows

from ...batch import Batch
from ..description.feed_forward import Activation, RoutingSpec
from ..layers import FeedForward, Norm
from ..linear import LoraLinear
from ..operations.operations import GroupedLinears, Operations


@dataclass(slots=True)
class BranchNorms:
    """As of BranchNormsSpec."""

    router: torch.Tensor
    """[C] float32"""
    experts: Norm
    shared: Norm
    experts_output: Norm
    shared_output: Norm


@dataclass(slots=True)
class Experts:
    router: LoraLinear
    """From C to a logit for each expert, in float32."""
    routing: RoutingSpec
    correction: torch.Tensor
    """[E] float32; [0] where there is none."""
    factors: torch.Tensor | None
    """[E] float32, of the weights."""
    inputs: GroupedLinears
    """Gate and up of each expert."""
    outputs: GroupedLinears
    operations: Operations
    activation: Activation
    shared: FeedForward | None = None
    shared_gate: LoraLinear | None = None
    """From C to one number, in float32."""
    branch_norms: BranchNorms | None = None

    def apply(self, x: torch.Tensor, cast: Float8Rows | None, batch: Batch) -> torch.Tensor:
        """x [T, C] -> [T, C]."""
        if self.branch_norms is not None:
            return self._branches(x, batch, self.branch_norms)
        y = self._routed(x, x.float(), batch)
        if self.shared is not None:
            gate = None if self.shared_gate is None else self.shared_gate.apply(x.float(), batch)
            self.operations.experts.add_shared(y, self.shared.apply(x, None, batch), gate)
        return y

    def _routed(self, x: torch.Tensor, judged: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What the experts make of x [T, C]. `judged` [T, C] float32: what the router reads."""
        logits = self.router.apply(judged, batch)
        experts, weights = self.operations.experts.route(logits, self.correction, self.factors, self.routing)
        rows = self.operations.experts.group(experts, self.routing.num_experts)
        gate_up = self.inputs.apply(x, rows, batch, by_token=True)
        inner = self.operations.multiply_gate(gate_up, self.activation)
        return self.operations.experts.add_up(self.outputs.apply(inner, rows, batch, by_token=False), rows, weights)

    def _branches(self, x: torch.Tensor, batch: Batch, norms: BranchNorms) -> torch.Tensor:
        assert self.shared is not None
        layer, judged = self.router.layer, self.operations.norm(x.float(), norms.router, None, norms.experts.eps)
        y = self._routed(norms.experts.apply(x, batch, layer), judged, batch)
        shared = self.shared.apply(norms.shared.apply(x, batch, layer), None, batch)
        return norms.experts_output.apply(y, batch, layer) + norms.shared_output.apply(shared, batch, layer)

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

    def norms(self) -> tuple[Norm, ...]:
        own = self.branch_norms
        return () if own is None else (own.experts, own.shared, own.experts_output, own.shared_output)
