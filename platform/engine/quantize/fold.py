"""Where AWQ's scales go: each input of a layer's linears is made by a norm or by a linear, which is divided by them.

input_layernorm -> q, k, v; v -> o; post_attention_layernorm -> gate, up; up -> down. Attention mixes values over tokens
and not over channels, and gate multiplies up channel by channel, so a scale on v or up comes out unchanged.
"""

from collections.abc import Mapping

import torch

from ..model.config import ModelConfig
from ..model.layer_inputs import INPUTS, LINEARS, NORMS, OUTPUT, linears_of, made_by

_READ_AT = {linear: place for place in INPUTS for linear in linears_of(place)}
_MADE_AT = {maker: place for place, maker in (NORMS | LINEARS).items()}
_ALL = slice(None)


def shared_magnitudes(place: str, magnitudes: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """[in] -> [in]: query heads that read one value head must agree on its scales, so they get its mean."""
    if place != OUTPUT:
        return magnitudes
    by_value_head = magnitudes.reshape(config.attention.num_kv_heads, -1, config.attention.head_dim)
    return by_value_head.mean(1, keepdim=True).expand_as(by_value_head).flatten()


def storable_scales(scales: torch.Tensor, norm: torch.Tensor, stored: torch.dtype) -> torch.Tensor:
    """The scales [in] nearest to these by which `norm` [in] can be divided and stored without rounding."""
    folded = (norm / scales).to(stored).to(norm.dtype)
    return torch.where(folded * norm > 0, norm / folded, 1.0)


def norm_name(place: str) -> str | None:
    return f"{NORMS[place]}.weight" if place in NORMS else None


def folded(
    name: str, tensor: torch.Tensor, scales: Mapping[str, torch.Tensor], config: ModelConfig, rows: slice = _ALL
) -> torch.Tensor:
    """The layer's tensor `name`, of which these are the `rows`, once the inputs [in] at the places of `scales` are
    multiplied and what makes them is divided: with all its tensors folded the layer computes the same."""
    module, _, kind = name.rpartition(".")
    read, made = _READ_AT.get(module), _MADE_AT.get(module)
    if kind == "weight" and read is not None and read in scales:
        tensor = tensor * scales[read]
    if made is not None and made in scales:
        outputs = made_by(made, scales[made], config)[rows]
        tensor = tensor / (outputs if tensor.ndim == 1 else outputs[:, None])
    return tensor
