"""One layer of the decoder: attention and MLP, each behind a norm and added to the residual stream.

Shapes: T new tokens, C hidden size.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..attention.backend import AttentionBackend, Rotary
from ..batch import Batch
from .linear import LoraLinear


@dataclass(slots=True)
class Norm:
    """x / rms(x) * weight over the last dimension, the mean in float32."""

    weight: torch.Tensor
    eps: float

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


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
        gate, up = self.gate_up.apply(x, batch).chunk(2, dim=-1)
        return self.down.apply(F.silu(gate) * up, batch)


@dataclass(slots=True)
class DecoderLayer:
    input_norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: Mlp

    def apply(self, hidden: torch.Tensor, batch: Batch, cache: AttentionBackend) -> torch.Tensor:
        """hidden [T, C] -> [T, C], the residual stream."""
        hidden = hidden + self.attention.apply(self.input_norm.apply(hidden), batch, cache)
        return hidden + self.mlp.apply(self.mlp_norm.apply(hidden), batch)
