"""Decoder: one transformer for every supported family; its description decides what the layers hold."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from loraplex.quant.linears.scheme import LinearMethod

from ..attention.backend import AttentionBackend
from ..batch import Batch
from ..delta_net.backend import DeltaNetBackend
from .layers import DecoderLayer, DeltaNet, Norm
from .linear import LoraLinear
from .operations.operations import Operations

if TYPE_CHECKING:
    from .fused.decoder import FusedDecoder


Ends = tuple[torch.Tensor, torch.Tensor]
"""x and residual [T, C]: what the last layer gave, and what it is to be added to."""


@dataclass(slots=True)
class Embedding:
    """From token ids to what the first layer takes."""

    table: torch.Tensor
    """[V, E], in the stored dtype."""
    dtype: torch.dtype
    """Of the stream."""
    scale: float = 1.0
    positions: torch.Tensor | None = None
    """[positions, C] in the stream's dtype, added by position."""
    projection: LoraLinear | None = None
    """From E to C, where these differ."""
    segments: torch.Tensor | None = None
    """[1 or 2, C] in the stream's dtype, added by the text of a pair; one row is for both."""
    norm: Norm | None = None

    def apply(self, batch: Batch, operations: Operations) -> torch.Tensor:
        """[T, C]."""
        x = operations.embed(batch.token_ids, self.table, self.dtype, batch.lora)
        if self.scale != 1.0:
            x = x * self.scale
        if self.projection is not None:
            x = self.projection.apply(x, batch)
        if self.segments is not None:
            second = batch.segments is not None and len(self.segments) > 1
            x = x + (self.segments[batch.segments] if second else self.segments[0])
        if self.positions is not None:
            x = x + self.positions[batch.positions]
        return x if self.norm is None else operations.norm(x, self.norm.weight, self.norm.bias, self.norm.eps)


@dataclass(slots=True)
class TokenInputs:
    """From token ids, and what the first layer takes, to what each layer gets of each token."""

    table: torch.Tensor
    """[V, L * P], in the stored dtype. Adapters leave it as it is."""
    table_scale: float
    projection: LoraLinear
    projection_scale: float
    norm: torch.Tensor
    """[P], what the normed rows are multiplied by. Adapters leave it as it is."""
    eps: float
    scale: float

    def apply(self, x: torch.Tensor, batch: Batch, operations: Operations) -> torch.Tensor:
        """x [T, C] -> [L, T, P]."""
        size = len(self.norm)
        projected = (self.projection.apply(x, batch) * self.projection_scale).view(-1, size)
        normed = operations.norm(projected, self.norm, None, self.eps).view(len(x), -1)
        rows = operations.embed(batch.token_ids, self.table, x.dtype, None) * self.table_scale
        given = (normed + rows) * self.scale
        return given.view(len(x), -1, size).transpose(0, 1).contiguous()


@dataclass(slots=True)
class Head:
    """From the last norm to logits."""

    method: LinearMethod
    projection: LoraLinear | None = None
    """From C to E, where these differ."""
    scale: float = 1.0
    soft_cap: float | None = None

    def project(self, x: torch.Tensor, rows: torch.Tensor, batch: Batch) -> torch.Tensor:
        """x [R, C] of the tokens `rows` [R] -> [R, E]."""
        if self.projection is None:
            return x
        everyone = x.new_zeros(len(batch.token_ids), x.shape[1])  # adapters are applied by token
        everyone[rows] = x
        return self.projection.apply(everyone, batch)[rows]

    def finish(self, logits: torch.Tensor) -> torch.Tensor:
        """Scaled and capped; what a model does not know stays at minus infinity."""
        if self.scale == 1.0 and self.soft_cap is None:
            return logits
        logits = logits.float()
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.soft_cap is None:
            return logits
        capped = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return torch.where(logits.isneginf(), logits, capped)


@dataclass(slots=True)
class Decoder:
    embedding: Embedding
    layers: list[DecoderLayer]
    norm: Norm | None
    head: Head | None
    """None: there are no logits."""
    operations: Operations
    token_inputs: TokenInputs | None = None
    fused: "FusedDecoder | None" = field(default=None)
    """All of it as one call, where `fuse` found that it can be; the same results."""

    def attach_states(self, states: DeltaNetBackend | None) -> None:
        """Where recurrent layers keep their states from now on."""
        for layer in self.layers:
            if isinstance(layer.mixer, DeltaNet):
                layer.mixer.states = states

    def fuse(self, cache: AttentionBackend) -> None:
        """Compute over `cache` in one call from now on, if everything fits: on a CPU."""
        from .fused.decoder import fuse

        self.fused = fuse(self, cache)

    def forward(self, batch: Batch, cache: AttentionBackend) -> torch.Tensor:
        """Logits [R, V] of the batch's sample_rows, in float32 or as `Operations.widen_logits` leaves them; writes keys
        and values of all its tokens to `cache`."""
        return self.forward_with_ends(batch, cache)[0]

    def forward_with_ends(self, batch: Batch, cache: AttentionBackend) -> tuple[torch.Tensor, Ends]:
        """As `forward`, with what `hidden` takes, good until the next step."""
        if self.fused is not None:
            return self.fused.forward(batch, cache), self.fused.ends()
        ends = self.compute(batch, cache)
        return self.end(*ends, batch), ends

    def compute(self, batch: Batch, cache: AttentionBackend) -> Ends:
        """What the last layer gives, x and residual [T, C], for `end`, which can be asked for some rows at a time."""
        x = self.begin(batch)
        residual, given = torch.zeros_like(x), self.given(x, batch)
        for layer in self.layers:
            x = layer.apply(x, residual, batch, cache, None if given is None else given[layer.index])
        return x, residual

    def begin(self, batch: Batch) -> torch.Tensor:
        """What the first layer takes, [T, C]; the residual stream before it is zero."""
        return self.embedding.apply(batch, self.operations)

    def given(self, x: torch.Tensor, batch: Batch) -> torch.Tensor | None:
        """What each layer takes beside it, [L, T, P], of what `begin` gave; None: nothing."""
        return None if self.token_inputs is None else self.token_inputs.apply(x, batch, self.operations)

    def end(self, x: torch.Tensor, residual: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What the last layer gave, x and residual [T, C], to logits as those of `forward`. Changes neither, unless the
        batch draws all."""
        if self.head is None or not len(batch.sample_rows):
            return torch.empty(0, self.embedding.table.shape[0], device=x.device)
        logits, hidden = self._base_logits(self.head, x, residual, batch)
        if batch.lora is not None:
            logits = self.operations.adapt_logits(logits, hidden, batch.sample_rows, batch.lora)
        return self.head.finish(logits)

    def _base_logits(
        self, head: Head, x: torch.Tensor, residual: torch.Tensor, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The base's logits and what they are computed of, in which norms are the adapters' already."""
        rows = batch.sample_rows
        x = head.project(self.hidden(x, residual, rows, batch), rows, batch)
        return self.operations.widen_logits(head.method.apply(x), batch.lora), x

    def hidden(self, x: torch.Tensor, residual: torch.Tensor, rows: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What the last layer gave, x and residual [T, C], after the last norm: [R, C] of the tokens `rows` [R], at
        least one. Changes neither, unless the batch draws all."""
        if not batch.draws_all:
            x, residual = x[rows], residual[rows]
        return residual.add_(x) if self.norm is None else self.norm.apply_to_sum(x, residual, batch, 0, rows)

    def projections(self) -> list[LoraLinear]:
        """At the ends."""
        given = None if self.token_inputs is None else self.token_inputs.projection
        head = None if self.head is None else self.head.projection
        return [it for it in (self.embedding.projection, head, given) if it is not None]

    def weight_bytes(self) -> int:
        linears = [linear.method for layer in self.layers for linear in layer.all_linears()]
        ends = [linear.method for linear in self.projections()]
        head = [] if self.head is None else [self.head.method]
        tables = self.embedding.table.nbytes + (0 if self.token_inputs is None else self.token_inputs.table.nbytes)
        return tables + sum(method.weight_bytes() for method in (*linears, *ends, *head))
