"""The gated delta net of the plain forward: whole sequences, token by token, in the dtype of the tensors.

Shapes: S sequences, L tokens each, H value heads of size D, K key heads of size E.
"""

from collections.abc import Mapping
from typing import Final

import torch
import torch.nn.functional as F

from ...model.description.spec import DeltaNetSpec

SQUARES_EPS: Final = 1e-6
"""Added to the squares of a query or key before it is divided by their root."""


def delta_rule(spec: DeltaNetSpec, tensors: Mapping[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    """inputs [S, L, all that the linears of `spec.inputs` give] -> [S, L, H D], what the output linear reads.

    `tensors`: the layer's, by name within it.
    """
    convolution, a_log, dt_bias, _ = (tensors[name] for name in spec.tensors())
    qkv, gate, beta, step = torch.split(inputs, [linear.outputs for linear in spec.inputs], dim=-1)
    mixed = F.silu(_convolved(qkv, convolution))
    keys, values = spec.num_key_heads * spec.key_head_dim, spec.num_value_heads * spec.value_head_dim
    query, key, value = torch.split(mixed, [keys, keys, values], dim=-1)
    query, key = (_unit_heads(spec, part) for part in (query, key))
    decay = torch.exp(-a_log.exp() * F.softplus(step + dt_bias))
    read = _recur(query * spec.key_head_dim**-0.5, key, _heads(value, spec.num_value_heads), decay, torch.sigmoid(beta))
    normed = F.rms_norm(read, (spec.value_head_dim,), tensors[f"{spec.norm.path}.weight"], spec.norm.eps)
    return normed.flatten(2) * F.silu(gate)


def _convolved(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Each channel of x [S, L, channels] over the tokens up to each one; weight [channels, 1, taps]."""
    channels, _, taps = weight.shape
    return F.conv1d(F.pad(x.transpose(1, 2), (taps - 1, 0)), weight, groups=channels).transpose(1, 2)


def _unit_heads(spec: DeltaNetSpec, x: torch.Tensor) -> torch.Tensor:
    """x [S, L, K E] -> [S, L, H, E], each of length one, one for each value head."""
    heads = _heads(x, spec.num_key_heads)
    heads = heads / torch.sqrt(heads.square().sum(-1, keepdim=True) + SQUARES_EPS)
    return heads.repeat_interleave(spec.num_value_heads // spec.num_key_heads, dim=2)


def _heads(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.reshape(*x.shape[:2], count, -1)


def _recur(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    """query and key [S, L, H, E], value [S, L, H, D], decay and beta [S, L, H] -> [S, L, H, D].

    A state [E, D] of each head forgets by `decay`, and learns how far `value` is from what it knows of `key`.
    """
    state = value.new_zeros(*value.shape[0::2], key.shape[-1], value.shape[-1])
    read = torch.empty_like(value)
    for token in range(value.shape[1]):
        state = state * decay[:, token, :, None, None]
        known = (key[:, token, :, None] @ state)[:, :, 0]
        change = beta[:, token, :, None] * (value[:, token] - known)
        state = state + key[:, token, :, :, None] * change[:, :, None]
        read[:, token] = (query[:, token, :, None] @ state)[:, :, 0]
    return read
