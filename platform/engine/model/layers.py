"""One layer of the decoder: attention and MLP, each behind a norm and added to the residual stream.

Shapes: T new tokens, C hidden size.
"""

from dataclasses import dataclass

import torch

from ..attention.backend import AttentionBackend, Rotary
from ..batch import Batch
from ..kernels.norm import add_rms_norm
from ..kernels.silu import silu_multiply
from .linear import LoraLinear


@dataclass(slots=True)
class Norm:
    weight: torch.Tensor
    eps: float

    def apply_to_sum(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual += x, in place; then the RMS norm of the residual [T, C]."""
        return add_rms_norm(x, residual, self.weight, self.eps)


@dataclass(slots=True)
class Attention:
    layer: int
    qkv: LoraLinear
    output: LoraLinear
    rotary: Rotary

    def apply(self, x: torch.Tensor, batch: Batch, cache: AttentionBackend) -> torch.Tensor:
        """x [T, C] -> [T, C]; the new tokens' keys and values go to the cache on the way."""
        query = cache.rotate_and_write(self.layer, self.qkv.apply(x, batch), self.rotary, batch)
        return self.output.apply(cache.attend(self.layer, query, batch).flatten(1), batch)


@dataclass(slots=True)
class Mlp:
    gate_up: LoraLinear
    down: LoraLinear

    def apply(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        return self.down.apply(silu_multiply(self.gate_up.apply(x, batch)), batch)


@dataclass(slots=True)
class DecoderLayer:
    input_norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: Mlp

    def apply(self, x: torch.Tensor, residual: torch.Tensor, batch: Batch, cache: AttentionBackend) -> torch.Tensor:
        """x [T, C] is what was computed last and not yet added to the residual stream; so is what is returned."""
        x = self.attention.apply(self.input_norm.apply_to_sum(x, residual), batch, cache)
        return self.mlp.apply(self.mlp_norm.apply_to_sum(x, residual), batch)
