"""One layer of the decoder: attention and MLP, each behind a norm and added to the residual stream.

Shapes: T new tokens, C hidden size.
"""

from dataclasses import dataclass, replace

import torch

from loraplex.lora.batch import LoraBatch
from loraplex.lora.norms import norm_weight

from ..attention.backend import HEAD_NORMS, AttentionBackend, Rotary
from ..batch import Batch, single_tokens
from .linear import LoraLinear
from .operations import Operations


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

    def apply(self, x: torch.Tensor, batch: Batch, cache: AttentionBackend) -> torch.Tensor:
        """x [T, C] -> [T, C]; the new tokens' keys and values go to the cache on the way."""
        qkv = self.qkv.apply(x, batch)
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

    def apply(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        return self.down.apply(self.operations.multiply_gate(self.gate_up.apply(x, batch)), batch)


@dataclass(slots=True)
class DecoderLayer:
    input_norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: Mlp

    def apply(self, x: torch.Tensor, residual: torch.Tensor, batch: Batch, cache: AttentionBackend) -> torch.Tensor:
        """x [T, C] is what was computed last and not yet added to the residual stream; so is what is returned."""
        x = self.attention.apply(self._norm(self.input_norm, "input_layernorm", x, residual, batch), batch, cache)
        return self.mlp.apply(self._norm(self.mlp_norm, "post_attention_layernorm", x, residual, batch), batch)

    def _norm(self, norm: Norm, kind: str, x: torch.Tensor, residual: torch.Tensor, batch: Batch) -> torch.Tensor:
        x = norm.apply_to_sum(x, residual)
        if batch.lora is None or kind not in batch.lora.changed:
            return x
        return norm.operations.replace_norms(x, residual, None, batch.lora, self.attention.layer, kind, norm.eps)
