"""One layer of the decoder: attention and MLP, each behind a norm and added to the residual stream.

Shapes: T new tokens, C hidden size.
"""

from dataclasses import dataclass, replace

import torch

from loraplex.lora.apply.batch import LoraBatch
from loraplex.lora.apply.norms import norm_weight
from loraplex.quant.linears.scheme import Float8Rows

from ..attention.backend import HEAD_NORMS, AttentionBackend, Rotary
from ..batch import Batch, single_tokens
from .linear import LoraLinear
from .operations.operations import Operations


@dataclass(slots=True)
class Norm:
    weight: torch.Tensor
    eps: float
    operations: Operations

    def apply_to_sum(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual += x, in place; then the RMS norm of the residual [T, C]."""
        return self.operations.add_rms_norm(x, residual, self.weight, self.eps)


@dataclass(slots=True)
class Attention:
    layer: int
    qkv: LoraLinear
    output: LoraLinear
    rotary: Rotary

    def apply(self, x: torch.Tensor, cast: Float8Rows | None, batch: Batch, cache: AttentionBackend) -> torch.Tensor:
        """x [T, C] -> [T, C]; the new tokens' keys and values go to the cache on the way."""
        qkv = self.qkv.apply(x, batch, cast)
        query = cache.rotate_and_write(self.layer, qkv, self.rotary, batch)
        if batch.lora is not None and batch.lora.changed & HEAD_NORMS and not cache.takes_own_norms:
            self._rotate_again(qkv, query, batch, batch.lora, cache)
        return self.output.apply(cache.attend(self.layer, query, batch).flatten(1), batch)

    def _rotate_again(
        self, qkv: torch.Tensor, query: torch.Tensor, batch: Batch, lora: LoraBatch, cache: AttentionBackend
    ) -> None:
        """For the tokens whose adapters norm queries or keys with weights of their own."""
        size = query.shape[2]
        for slot in set(lora.token_slot[:, 0].tolist()):
            norms = [norm_weight(lora, slot, self.layer, kind, size) for kind in ("q_norm", "k_norm")]
            if any(norm is not None for norm in norms):
                tokens = (lora.token_slot[:, 0] == slot).nonzero()[:, 0]
                own = (self.rotary.query_norm, self.rotary.key_norm)
                chosen = [old if new is None else new for old, new in zip(own, norms, strict=True)]
                rotary = replace(self.rotary, query_norm=chosen[0], key_norm=chosen[1])
                single = single_tokens(batch, tokens)
                query[tokens] = cache.rotate_and_write(self.layer, qkv[tokens], rotary, single)
                if batch.clipped is not None and single.clipped is not None:
                    batch.clipped[self.layer, tokens] = single.clipped[self.layer]


@dataclass(slots=True)
class Mlp:
    gate_up: LoraLinear
    down: LoraLinear
    operations: Operations

    def apply(self, x: torch.Tensor, cast: Float8Rows | None, batch: Batch) -> torch.Tensor:
        """x [T, C] -> [T, C]."""
        gate_up = self.gate_up.apply(x, batch, cast)
        if self.down.casts is None:
            return self.down.apply(self.operations.multiply_gate(gate_up), batch)
        casts, scale = self.down.casts
        product, cast = casts.multiply_gate(gate_up, scale)
        return self.down.apply(product, batch, cast)


@dataclass(slots=True)
class DecoderLayer:
    input_norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: Mlp

    def apply(self, x: torch.Tensor, residual: torch.Tensor, batch: Batch, cache: AttentionBackend) -> torch.Tensor:
        """x [T, C] is what was computed last and not yet added to the residual stream; so is what is returned."""
        qkv, gate_up = self.attention.qkv, self.mlp.gate_up
        x, cast = self._norm(self.input_norm, "input_layernorm", qkv, x, residual, batch)
        x = self.attention.apply(x, cast, batch, cache)
        x, cast = self._norm(self.mlp_norm, "post_attention_layernorm", gate_up, x, residual, batch)
        return self.mlp.apply(x, cast, batch)

    def _norm(
        self, norm: Norm, kind: str, reader: LoraLinear, x: torch.Tensor, residual: torch.Tensor, batch: Batch
    ) -> tuple[torch.Tensor, Float8Rows | None]:
        """Cast for `reader` on the way, unless adapters bring norms of their own: then it casts by itself."""
        lora = batch.lora
        if lora is not None and kind in lora.changed:
            x = norm.apply_to_sum(x, residual)
            layer = self.attention.layer
            return norm.operations.replace_norms(x, residual, None, lora, layer, kind, norm.eps), None
        if reader.casts is None:
            return norm.apply_to_sum(x, residual), None
        casts, scale = reader.casts
        return casts.add_rms_norm(x, residual, norm.weight, norm.eps, scale)
