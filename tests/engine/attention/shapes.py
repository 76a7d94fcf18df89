"""Caches of layers that are alike but for their windows."""

from collections.abc import Sequence
from typing import Any

import torch

from loraplex.engine.attention.backend import CacheShape
from loraplex.engine.attention.layer import LayerAttention


def alike(
    heads: tuple[int, int], head_dim: int, windows: Sequence[int | None] = (None,), *, block_size: int = 16,
    num_blocks: int, cache_dtype: torch.dtype = torch.float32, static_scales: torch.Tensor | None = None, **layer: Any,
) -> CacheShape:  # fmt: skip
    """heads: of the query, and of keys and values. One layer a window."""
    layer = {"num_heads": heads[0], "num_kv_heads": heads[1], "head_dim": head_dim, "scale": head_dim**-0.5} | layer
    return CacheShape(
        layers=tuple(LayerAttention(window=window, **layer) for window in windows),
        num_blocks=num_blocks,
        block_size=block_size,
        cache_dtype=cache_dtype,
        static_scales=None if static_scales is None else static_scales.unbind(),
    )
