"""Attention without a cache, in which tokens see those behind them too: of BERT, ModernBERT, EmbeddingGemma.

Shapes: T tokens of packed sequences, H query heads, G KV heads, D head size.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch
import torch.nn.functional as F

from ..batch import Batch
from .backend import Rotary
from .layer import LayerAttention
from .prepare import prepare

NEAR_QUERIES: Final = 128
"""Of one product where tokens see near ones alone: products with keys that none of them sees are few then."""


class EncoderAttention:
    """AttentionBackend of layers that are not causal: every step has whole prompts, and no cache is kept."""

    takes_own_norms = False

    def __init__(self, layers: Sequence[LayerAttention]) -> None:
        assert not any(layer.is_causal for layer in layers)
        self.layers = layers
        self._written: tuple[torch.Tensor, torch.Tensor] | None = None
        """Keys and values of the layer that is being computed."""
        self._batch: Batch | None = None
        self._starts = torch.empty(0)
        """query_starts of that step, on the host."""

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, batch: Batch) -> None:
        if batch.rows is None:
            self._written = key, value
            return
        assert self._written is not None, "some are written again after all were"
        for whole, again in zip(self._written, (key, value), strict=True):
            whole[batch.rows] = again

    def rotate_and_write(self, layer: int, qkv: torch.Tensor, rotary: Rotary, batch: Batch) -> torch.Tensor:
        query, written = prepare(qkv, rotary, self.layers[layer], batch.positions)
        assert written is not None
        self.write(layer, *written, batch)
        return query

    def attend(self, layer: int, query: torch.Tensor, batch: Batch, sinks: torch.Tensor | None = None) -> torch.Tensor:
        assert self._written is not None and sinks is None
        if self._batch is not batch:
            self._batch, self._starts = batch, batch.query_starts.cpu()
        own, (key, value) = self.layers[layer], self._written
        reach = None if own.window is None else own.window - 1
        return attend_all(query, key, value, self._starts, own.scale, reach)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """There are none."""

    def cache_bytes(self) -> int:
        return 0


def attend_all(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, query_starts: torch.Tensor, scale: float,
    reach: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """query [T, H, D], key and value [T, G, D] -> [T, H, D], in the dtype of query.

    Sequence s has the tokens query_starts[s] to query_starts[s + 1]. Each sees all of its sequence, or those at most
    `reach` tokens before and behind it. What a sequence gives does not depend on the others. Reads query_starts on the
    host.
    """
    output = torch.empty_like(query)
    for first, last in pairwise(query_starts.tolist()):
        each = NEAR_QUERIES if reach is not None else max(1, last - first)
        for begin in range(first, last, each):
            end = min(begin + each, last)
            nearest = first if reach is None else max(first, begin - reach)
            farthest = last if reach is None else min(last, end + reach)
            seen = None if reach is None else _near(begin, end, nearest, farthest, reach, query.device)
            keys = slice(nearest, farthest)
            q, k, v = (part.transpose(0, 1)[None] for part in (query[begin:end], key[keys], value[keys]))
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=True)
            output[begin:end] = attended[0].transpose(0, 1)
    return output


def _near(begin: int, end: int, nearest: int, farthest: int, reach: int, device: torch.device) -> torch.Tensor:
    """[queries, keys] bool: which tokens from `nearest` on those from `begin` on see."""
    queries, keys = torch.arange(begin, end, device=device), torch.arange(nearest, farthest, device=device)
    return (queries[:, None] - keys).abs() <= reach
