"""A plain forward of one layer on whole sequences, in the dtype of its tensors: what calibration and perplexity need.

It shares nothing with the served path but the configuration and the rotary tables. Shapes: S sequences, L tokens each,
C hidden size, D head size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..model.config import ModelConfig
from ..model.layer_inputs import DOWN, GATE_UP, OUTPUT, QKV
from ..model.rope import RopeTables

LayerTensors = Mapping[str, torch.Tensor]
"""By name within the layer: self_attn.q_proj.weight."""


def plain_linear(tensors: LayerTensors, name: str, x: torch.Tensor) -> torch.Tensor:
    """x [..., in] -> [..., out]."""
    return F.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))


Linear = Callable[[LayerTensors, str, torch.Tensor], torch.Tensor]
"""What `plain_linear` is: the linear `name` of the layer on x [S, L, in]."""
Observe = Callable[[str, torch.Tensor], None]
"""Gets each of INPUTS and what was read there, [S * L, in]."""


@dataclass(frozen=True, slots=True)
class LayerForward:
    """One layer of any supported family."""

    config: ModelConfig
    layer: int
    tables: RopeTables
    """Cosines and sines [at least L, D / 2]."""
    linear: Linear = plain_linear

    def apply(self, tensors: LayerTensors, x: torch.Tensor, observe: Observe | None = None) -> torch.Tensor:
        """x [S, L, C] -> [S, L, C], the residual stream after this layer."""
        see = observe or (lambda place, rows: None)
        x = x + self._attention(tensors, self._norm(tensors["input_layernorm.weight"], x), see)
        normed = self._norm(tensors["post_attention_layernorm.weight"], x)
        see(GATE_UP, normed.flatten(0, 1))
        inner = F.silu(self.linear(tensors, "mlp.gate_proj", normed)) * self.linear(tensors, "mlp.up_proj", normed)
        see(DOWN, inner.flatten(0, 1))
        return x + self.linear(tensors, "mlp.down_proj", inner)

    def _attention(self, tensors: LayerTensors, x: torch.Tensor, see: Observe) -> torch.Tensor:
        see(QKV, x.flatten(0, 1))
        query, key, value = (self._heads(self.linear(tensors, f"self_attn.{part}_proj", x)) for part in "qkv")
        if self.config.qk_norm:
            query = self._norm(tensors["self_attn.q_norm.weight"], query)
            key = self._norm(tensors["self_attn.k_norm.weight"], key)
        query, key = self._rotate(query), self._rotate(key)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=self._mask(x), enable_gqa=True)
        mixed = mixed.transpose(1, 2).flatten(2)
        see(OUTPUT, mixed.flatten(0, 1))
        return self.linear(tensors, "self_attn.o_proj", mixed)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        """[S, L, heads * D] -> [S, heads, L, D]."""
        return x.reshape(*x.shape[:2], -1, self.config.head_dim).transpose(1, 2)

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        cosines, sines = (table[: x.shape[2]].to(x) for table in self.tables)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)

    def _mask(self, x: torch.Tensor) -> torch.Tensor:
        """[L, L], what each token sees: itself and those before, within the sliding window where the layer has one."""
        positions = torch.arange(x.shape[1], device=x.device)
        distance = positions[:, None] - positions
        window = self.config.sliding_windows[self.layer]
        return (distance >= 0) if window is None else (distance >= 0) & (distance < window)

    def _norm(self, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(weight, x, self.config.rms_norm_eps)


def rms_norm(weight: torch.Tensor, x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
