"""One layer of the decoder: attention and MLP, each behind a norm and added to the residual stream.

Shapes: T new tokens, H query heads, G KV heads, D head size, C hidden size.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..attention.backend import AttentionBackend
from ..batch import Batch
from .linear import LoraLinear

Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines [T, D / 2] of the step's positions."""


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
    head_dim: int
    qkv: LoraLinear
    output: LoraLinear
    query_norm: Norm | None
    key_norm: Norm | None
    backend: AttentionBackend

    def apply(self, x: torch.Tensor, rotation: Rotation, batch: Batch) -> torch.Tensor:
        """x [T, C] -> [T, C]; the new tokens' keys and values go to the cache first."""
        parts = self.qkv.apply(x, batch).split(self.qkv.method.out_features, dim=-1)
        query, key, value = (part.unflatten(-1, (-1, self.head_dim)) for part in parts)
        if self.query_norm and self.key_norm:
            query, key = self.query_norm.apply(query), self.key_norm.apply(key)
        self.backend.write(self.layer, rotate(key, rotation), value, batch)
        attended = self.backend.attend(self.layer, rotate(query, rotation), batch)
        return self.output.apply(attended.flatten(1), batch)


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

    def apply(self, hidden: torch.Tensor, rotation: Rotation, batch: Batch) -> torch.Tensor:
        """hidden [T, C] -> [T, C], the residual stream."""
        hidden = hidden + self.attention.apply(self.input_norm.apply(hidden), rotation, batch)
        return hidden + self.mlp.apply(self.mlp_norm.apply(hidden), batch)


def rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """x [T, heads, D]: the two halves of each head turned by the position's angles."""
    cos, sin = (table.unsqueeze(1).to(x.dtype) for table in rotation)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
