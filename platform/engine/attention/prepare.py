"""Norms of heads and rope in plain torch: for sizes that no kernel takes, and what kernels are tested against."""

import torch

from .backend import Rotary
from .layer import LayerAttention


def prepare(
    qkv: torch.Tensor, rotary: Rotary, layer: LayerAttention, positions: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None]:
    """qkv as `rotate_and_write` takes it -> query [T, H, D], and key and value [T, G, D] of a layer that stores them,
    in the dtype of qkv."""
    heads = qkv.view(len(qkv), -1, layer.head_dim)
    query = heads[:, : layer.num_heads]
    query = rotate(normed(query, rotary.query_norm, rotary.eps), rotary, positions)
    if rotary.query_scale is not None:
        query = query * rotary.query_scale[positions, None, None].to(query.dtype)
    if layer.keys_of is not None:
        return query, None
    key, value = heads[:, layer.num_heads :].chunk(2, dim=1)
    key = rotate(normed(key, rotary.key_norm, rotary.eps), rotary, positions)
    return query, (key, root_mean_square(value, rotary.eps) if rotary.value_norm else value)


def rotate(heads: torch.Tensor, rotary: Rotary, positions: torch.Tensor) -> torch.Tensor:
    """Rope on heads [T, n, D], in their dtype."""
    if rotary.cos is None or rotary.sin is None:
        return heads
    cos, sin = (table[positions, None].to(heads.dtype) for table in (rotary.cos, rotary.sin))
    turned, rest = heads[..., : rotary.turned], heads[..., rotary.turned :]
    if rotary.interleaved:
        first, second = turned[..., ::2], turned[..., 1::2]
        pairs = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return torch.cat((pairs.flatten(-2), rest), dim=-1)
    first, second = turned.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def normed(heads: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """heads [T, n, D], each normed, or all together where the weight has n * D numbers."""
    if weight is None:
        return heads
    if len(weight) == heads.shape[2]:
        return root_mean_square(heads, eps) * weight.to(heads.dtype)
    return (root_mean_square(heads.flatten(1), eps) * weight.to(heads.dtype)).view(heads.shape)


def root_mean_square(numbers: torch.Tensor, eps: float) -> torch.Tensor:
    """Over the last dimension."""
    return numbers * torch.rsqrt(numbers.pow(2).mean(dim=-1, keepdim=True) + eps)
