"""Where AWQ's scales go: each input of a layer's linears is made by a norm or by a linear, which is divided by them.

input_layernorm -> q, k, v; v -> o; post_attention_layernorm -> gate, up; up -> down. Attention mixes values over tokens
and not over channels, and gate multiplies up channel by channel, so a scale on v or up comes out unchanged.
"""

from collections.abc import MutableMapping

import torch

from ..model.config import ModelConfig
from .forward import DOWN, GATE_UP, OUTPUT, QKV, linears_of

NORMS = {QKV: "input_layernorm", GATE_UP: "post_attention_layernorm"}
LINEARS = {OUTPUT: "self_attn.v_proj", DOWN: "mlp.up_proj"}


def shared_magnitudes(place: str, magnitudes: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """[in] -> [in]: query heads that read one value head must agree on its scales, so they get its mean."""
    if place != OUTPUT:
        return magnitudes
    by_value_head = magnitudes.reshape(config.num_kv_heads, -1, config.head_dim)
    return by_value_head.mean(1, keepdim=True).expand_as(by_value_head).flatten()


def storable_scales(scales: torch.Tensor, norm: torch.Tensor, stored: torch.dtype) -> torch.Tensor:
    """The scales [in] nearest to these by which `norm` [in] can be divided and stored without rounding."""
    folded = (norm / scales).to(stored).to(norm.dtype)
    return torch.where(folded * norm > 0, norm / folded, 1.0)


def norm_name(place: str) -> str | None:
    return f"{NORMS[place]}.weight" if place in NORMS else None


def fold(place: str, tensors: MutableMapping[str, torch.Tensor], scales: torch.Tensor, config: ModelConfig) -> None:
    """Multiply the inputs [in] of the linears at `place` and divide what makes them: the layer computes the same."""
    for linear in linears_of(place):
        tensors[f"{linear}.weight"] = tensors[f"{linear}.weight"] * scales
    norm = norm_name(place)
    if norm is not None:
        tensors[norm] = tensors[norm] / scales
        return
    maker, outputs = LINEARS[place], made_by(place, scales, config)
    tensors[f"{maker}.weight"] = tensors[f"{maker}.weight"] / outputs[:, None]
    if f"{maker}.bias" in tensors:
        tensors[f"{maker}.bias"] = tensors[f"{maker}.bias"] / outputs


def made_by(place: str, scales: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Scales of inputs [in] as those of the outputs of the linear that makes them: one of each value head's readers."""
    if place != OUTPUT:
        return scales
    return scales.reshape(config.num_kv_heads, -1, config.head_dim)[:, 0].flatten()
