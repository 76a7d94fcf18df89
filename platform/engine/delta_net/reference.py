"""The gated delta net by plain torch, token by token, in any float dtype: what the kernels are compared with.

x_t   = silu(sum over taps of conv * qkv)               q, k, v = x_t, cut into heads
q, k  = x / sqrt(sum of squares + 1e-6), q / sqrt(E)
S_t   = e^(-decay softplus(a + dt_bias)) S_(t-1) + k (x) sigmoid(b) (v - (decayed S)^T k)
y_t   = norm(S_t^T q) * weight * silu(z)
"""

from typing import Final

import torch
import torch.nn.functional as F

from .backend import DeltaWeights, Projections
from .shape import StateShape

NORM_EPS: Final = 1e-6
"""Of the squares of a query or key."""
State = tuple[torch.Tensor, torch.Tensor]
"""Last inputs of the convolution [taps - 1, K], and the recurrent state [H, E, D]."""


def empty_state(shape: StateShape, dtype: torch.dtype = torch.float32) -> State:
    recurrent = torch.zeros(shape.num_value_heads, shape.key_head_dim, shape.value_head_dim, dtype=dtype)
    return torch.zeros(shape.conv_kernel - 1, shape.channels, dtype=dtype), recurrent


def mix_sequence(
    projections: Projections, weights: DeltaWeights, shape: StateShape, state: State
) -> tuple[torch.Tensor, list[State]]:
    """Tokens of one sequence after `state`: [T, H D], and the state behind each of them."""
    conv, recurrent = state
    dtype, outputs, states = recurrent.dtype, [], []
    for token in range(len(projections.qkv)):
        inputs = torch.cat([conv, projections.qkv[token : token + 1].to(dtype)])
        query, key, value = _heads(F.silu((inputs * weights.conv.to(dtype)).sum(0)), shape)
        step = F.softplus(projections.step[token].to(dtype) + weights.dt_bias.to(dtype))
        recurrent = recurrent * torch.exp(-weights.decay.to(dtype) * step)[:, None, None]
        known = torch.einsum("hed,he->hd", recurrent, key)
        change = (value - known) * torch.sigmoid(projections.beta[token].to(dtype))[:, None]
        recurrent = recurrent + key[:, :, None] * change[:, None, :]
        conv = inputs[1:]
        output = torch.einsum("hed,he->hd", recurrent, query)
        gate = F.silu(projections.gate[token].to(dtype)).view_as(output)
        scale = torch.rsqrt(output.square().mean(-1, keepdim=True) + weights.eps)
        outputs.append((output * scale * weights.norm.to(dtype) * gate).flatten())
        states.append((conv, recurrent))
    return torch.stack(outputs), states


def _heads(mixed: torch.Tensor, shape: StateShape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query and key [H, E], normed, and value [H, D] of one token."""
    query, key, value = torch.split(mixed, [shape.key_size, shape.key_size, shape.value_size])
    group = shape.num_value_heads // shape.num_key_heads
    heads = [part.view(shape.num_key_heads, -1).repeat_interleave(group, 0) for part in (query, key)]
    query, key = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + NORM_EPS) for part in heads)
    return query * shape.key_head_dim**-0.5, key, value.view(shape.num_value_heads, -1)
