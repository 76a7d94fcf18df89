"""Attention without a cache, in which tokens see those behind them too: of encoders (BERT, ModernBERT).

Shapes: T tokens of packed sequences, H query heads, G KV heads, D head size.
"""

from itertools import pairwise
from typing import Final

import torch
import torch.nn.functional as F

NEAR_QUERIES: Final = 128
"""Of one product where tokens see near ones alone: products with keys that none of them sees are few then."""


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
