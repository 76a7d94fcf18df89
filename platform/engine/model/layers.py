"""One layer of the decoder: a mixer and a feed-forward, each behind a norm and added to the residual stream.

Shapes: T new tokens, C hidden size.
"""

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

import torch

from loraplex.lora.apply.batch import LoraBatch
from loraplex.lora.apply.norm_vectors import norm_weight
from loraplex.quant.linears.scheme import Float8Rows

from ..attention.backend import AttentionBackend, Rotary
from ..batch import Batch, single_tokens
from ..delta_net.backend import DeltaNetBackend, DeltaWeights, Projections
from .description.spec import Activation
from .linear import LoraLinear
from .operations.operations import Operations


@dataclass(slots=True)
class Norm:
    kind: str
    """As adapters call it."""
    weight: torch.Tensor
    """[C], what the normed rows are multiplied by."""
    eps: float
    operations: Operations
    bias: torch.Tensor | None = None
    """[C] of a LayerNorm; None: an RMS norm."""

    def apply(self, x: torch.Tensor, batch: Batch, layer: int) -> torch.Tensor:
        """The norm of x [T, C] as each token's adapter has it."""
        return self._owned(self.operations.norm(x, self.weight, self.bias, self.eps), x, None, batch, layer)

    def apply_to_sum(
        self, x: torch.Tensor, residual: torch.Tensor, batch: Batch, layer: int, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """residual += x, in place; then the norm of the residual [T, C] as each token's adapter has it. `rows`: which
        tokens these are; None: all."""
        return self._owned(self.add_to(x, residual), residual, rows, batch, layer)

    def add_to(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """The base's norm of residual += x."""
        if self.bias is None:
            return self.operations.add_rms_norm(x, residual, self.weight, self.eps)
        return self.operations.norm(residual.add_(x), self.weight, self.bias, self.eps)

    def _owned(
        self, normed: torch.Tensor, x: torch.Tensor, rows: torch.Tensor | None, batch: Batch, layer: int
    ) -> torch.Tensor:
        lora = batch.lora
        if lora is None or self.kind not in lora.changed:
            return normed
        is_layer_norm = self.bias is not None
        return self.operations.replace_norms(normed, x, rows, lora, layer, self.kind, self.eps, is_layer_norm)


class Mixer(Protocol):
    """What mixes the tokens of a sequence."""

    inputs: LoraLinear
    """What reads the normed stream first."""

    def apply(self, x: torch.Tensor, cast: Float8Rows | None, batch: Batch, cache: AttentionBackend) -> torch.Tensor:
        """x [T, C] -> [T, C]. `cast`: x as it was cast for `inputs`."""

    def linears(self) -> tuple[LoraLinear, ...]:
        """All of them."""


@dataclass(slots=True)
class Attention:
    layer: int
    place: int
    """Among the layers that attend."""
    inputs: LoraLinear
    """Queries, keys and values."""
    output: LoraLinear
    rotary: Rotary
    sinks: torch.Tensor | None = None
    """[H] float32, where the layer has them."""
    gated_heads: int = 0
    """Query heads that are each followed by their output's gate; 0: none is."""
    keys_that_are_values: int = 0
    """Numbers of a token's keys, the last that `inputs` gives, where values are the same; 0: they are not."""

    def apply(self, x: torch.Tensor, cast: Float8Rows | None, batch: Batch, cache: AttentionBackend) -> torch.Tensor:
        """The new tokens' keys and values go to the cache on the way."""
        qkv, gate = self._ungated(self.inputs.apply(x, batch, cast))
        if self.keys_that_are_values:
            qkv = torch.cat((qkv, qkv[:, -self.keys_that_are_values :]), dim=1)
        query = cache.rotate_and_write(self.place, qkv, self.rotary, batch)
        if (
            batch.lora is not None
            and not cache.takes_own_norms
            and batch.lora.changed.intersection(self.rotary.norm_kinds)
        ):
            self._rotate_again(qkv, query, batch, batch.lora, cache)
        attended = cache.attend(self.place, query, batch, self.sinks).flatten(1)
        return self.output.apply(attended if gate is None else self.output.operations.gate(attended, gate), batch)

    def linears(self) -> tuple[LoraLinear, ...]:
        return self.inputs, self.output

    def _ungated(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Queries, keys and values side by side, and the gates [T, H D] that stood among them."""
        if not self.gated_heads:
            return qkv, None
        width = 2 * self.output.method.in_features
        both = qkv[:, :width].view(len(qkv), self.gated_heads, 2, -1)
        return torch.cat([both[:, :, 0].flatten(1), qkv[:, width:]], dim=1), both[:, :, 1].flatten(1)

    def _rotate_again(
        self, qkv: torch.Tensor, query: torch.Tensor, batch: Batch, lora: LoraBatch, cache: AttentionBackend
    ) -> None:
        """For the tokens whose adapters norm queries or keys with weights of their own."""
        own = (self.rotary.query_norm, self.rotary.key_norm)
        named = list(zip(self.rotary.norm_kinds, own, strict=True))
        for slot in set(lora.token_slot[:, 0].tolist()):
            norms = [self._own_norm(lora, slot, kind, norm) for kind, norm in named]
            if any(norm is not None for norm in norms):
                tokens = (lora.token_slot[:, 0] == slot).nonzero()[:, 0]
                chosen = [old if new is None else new for old, new in zip(own, norms, strict=True)]
                rotary = replace(self.rotary, query_norm=chosen[0], key_norm=chosen[1])
                single = single_tokens(batch, tokens)
                query[tokens] = cache.rotate_and_write(self.place, qkv[tokens], rotary, single)
                if batch.clipped is not None and single.clipped is not None:
                    batch.clipped[self.place, tokens] = single.clipped[self.place]

    def _own_norm(self, lora: LoraBatch, slot: int, kind: str, norm: torch.Tensor | None) -> torch.Tensor | None:
        return None if norm is None else norm_weight(lora, slot, self.layer, kind, len(norm))


@dataclass(slots=True)
class DeltaNet:
    place: int
    """Among the layers with a recurrent state."""
    inputs: LoraLinear
    output: LoraLinear
    weights: DeltaWeights
    widths: list[int]
    """Outputs of each of the linears of `inputs`."""
    states: DeltaNetBackend | None = None
    """Set before the first step."""

    def apply(self, x: torch.Tensor, cast: Float8Rows | None, batch: Batch, cache: AttentionBackend) -> torch.Tensor:
        """The sequences' states are brought to their last tokens on the way."""
        assert self.states is not None
        read, ends = self.inputs.apply(x, batch, cast), list(accumulate(self.widths))
        projections = Projections(
            *(read[:, end - width : end].contiguous() for width, end in zip(self.widths, ends, strict=True))
        )
        return self.output.apply(self.states.mix(self.place, projections, self.weights, batch), batch)

    def linears(self) -> tuple[LoraLinear, ...]:
        return self.inputs, self.output


class TokenWise(Protocol):
    """What each token passes through alone."""

    @property
    def reader(self) -> LoraLinear:
        """What reads the normed stream first."""

    @property
    def inner_size(self) -> int:
        """Of what the activation gives."""

    def apply(self, x: torch.Tensor, cast: Float8Rows | None, batch: Batch) -> torch.Tensor:
        """x [T, C] -> [T, C]. `cast`: x as it was cast for `reader`."""

    def linears(self) -> tuple[LoraLinear, ...]:
        """Those that all tokens pass through."""

    def expert_linears(self) -> tuple[LoraLinear, ...]:
        """The others."""

    def norms(self) -> tuple[Norm, ...]:
        """Those within it."""


@dataclass(slots=True)
class FeedForward:
    inputs: LoraLinear
    """Gate and up, or the one linear before the activation."""
    output: LoraLinear
    operations: Operations
    activation: Activation = "silu"
    is_gated: bool = True

    def apply(self, x: torch.Tensor, cast: Float8Rows | None, batch: Batch) -> torch.Tensor:
        """x [T, C] -> [T, C]."""
        inner = self.inputs.apply(x, batch, cast)
        if not self.is_gated:
            return self.output.apply(self.operations.activate(inner, self.activation), batch)
        if self.output.casts is None:
            return self.output.apply(self.operations.multiply_gate(inner, self.activation), batch)
        casts, scale = self.output.casts
        product, cast = casts.multiply_gate(inner, self.activation, scale)
        return self.output.apply(product, batch, cast)

    @property
    def reader(self) -> LoraLinear:
        return self.inputs

    @property
    def inner_size(self) -> int:
        return self.output.method.in_features

    def linears(self) -> tuple[LoraLinear, ...]:
        return self.inputs, self.output

    def expert_linears(self) -> tuple[LoraLinear, ...]:
        return ()

    def norms(self) -> tuple[Norm, ...]:
        return ()


@dataclass(slots=True)
class TokenInput:
    """What the layer makes of its own input of each token."""

    gate: LoraLinear
    output: LoraLinear
    norm: Norm
    operations: Operations
    activation: Activation

    def apply(self, x: torch.Tensor, given: torch.Tensor, batch: Batch, layer: int) -> torch.Tensor:
        """x [T, C] of the stream, given [T, P] -> [T, C]."""
        gate = self.operations.activate(self.gate.apply(x, batch), self.activation)
        return self.norm.apply(self.output.apply(gate * given, batch), batch, layer)


@dataclass(slots=True, kw_only=True)
class DecoderLayer:
    index: int
    mixer: Mixer
    feed_forward: TokenWise
    mixer_norm: Norm | None
    feed_forward_norm: Norm | None
    mixer_output_norm: Norm | None = None
    feed_forward_output_norm: Norm | None = None
    norms_follow_sum: bool = False
    residual_scale: float = 1.0
    token_input: TokenInput | None = None
    scale: torch.Tensor | None = None
    """[1] in the dtype of the stream, which is multiplied by it in the end."""

    def apply(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        batch: Batch,
        cache: AttentionBackend,
        given: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x [T, C] is what was computed last and not yet added to the residual stream; so is what is returned. `given`
        [T, P]: the layer's own input of each token, where it has a `token_input`."""
        normed, cast = self._enter(self.mixer_norm, self.mixer.inputs, x, residual, batch)
        x = self.mixer.apply(normed, cast, batch, cache)
        x = self._leave(self.mixer_norm, self.mixer_output_norm, x, residual, batch)
        normed, cast = self._enter(self.feed_forward_norm, self.feed_forward.reader, x, residual, batch)
        x = self.feed_forward.apply(normed, cast, batch)
        x = self._leave(self.feed_forward_norm, self.feed_forward_output_norm, x, residual, batch)
        if self.token_input is not None:
            assert given is not None
            residual += x
            x = self.token_input.apply(residual, given, batch, self.index)
        if self.scale is not None:
            residual.add_(x).mul_(self.scale)
            x = torch.zeros_like(x)
        return x

    def linears(self) -> tuple[LoraLinear, ...]:
        """Those of experts apart."""
        own = () if self.token_input is None else (self.token_input.gate, self.token_input.output)
        return *self.mixer.linears(), *self.feed_forward.linears(), *own

    def all_linears(self) -> tuple[LoraLinear, ...]:
        """Those of experts too."""
        return *self.linears(), *self.feed_forward.expert_linears()

    def norms(self) -> list[Norm]:
        norms = (self.mixer_norm, self.mixer_output_norm, self.feed_forward_norm, self.feed_forward_output_norm)
        own = None if self.token_input is None else self.token_input.norm
        return [norm for norm in (*norms, *self.feed_forward.norms(), own) if norm is not None]

    def _enter(
        self, norm: Norm | None, reader: LoraLinear, x: torch.Tensor, residual: torch.Tensor, batch: Batch
    ) -> tuple[torch.Tensor, Float8Rows | None]:
        """What a block reads, with x added to the stream. Cast for `reader` on the way, unless adapters bring norms of
        their own: then it casts by itself."""
        if norm is None or self.norms_follow_sum:
            residual += x
            return residual, None
        is_own = batch.lora is not None and norm.kind in batch.lora.changed
        if reader.casts is None or is_own or norm.bias is not None:
            return norm.apply_to_sum(x, residual, batch, self.index), None
        casts, scale = reader.casts
        return casts.add_rms_norm(x, residual, norm.weight, norm.eps, scale)

    def _leave(
        self, norm: Norm | None, output_norm: Norm | None, x: torch.Tensor, residual: torch.Tensor, batch: Batch
    ) -> torch.Tensor:
        """What a block gave, as it is to be added to the stream."""
        if output_norm is not None:
            x = output_norm.apply(x, batch, self.index)
        if self.residual_scale != 1.0:
            x = x * self.residual_scale
        if norm is not None and self.norms_follow_sum:
            residual.copy_(norm.apply_to_sum(x, residual, batch, self.index))
            return torch.zeros_like(x)
        return x
