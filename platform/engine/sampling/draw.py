"""Draw tokens: temperature, min_p, top_k, top_p, then the inverse of the cumulative distribution at one uniform number.

Every row is computed from its own logits, parameters and (seed, position); how rows are grouped changes no bit.
Shapes: R rows, V tokens of the vocabulary, K candidates, most likely first.
"""

from typing import Final

import torch

from .state import SampleRow

CANDIDATES: Final = 1024
"""Most filters keep fewer tokens than this; a row that may keep more is sorted whole."""
LEAST_TEMPERATURE: Final = torch.finfo(torch.float32).tiny
"""Smaller ones would be rounded to 0; at this one only equals of the most likely token have a weight."""


def draw(logits: torch.Tensor, rows: list[SampleRow]) -> list[int]:
    """logits [R, V] float32 with a finite maximum, temperatures above 0 -> a token id for each row."""
    filtered = [index for index, row in enumerate(rows) if has_filter(row)]
    whole = [index for index, row in enumerate(rows) if not has_filter(row)]
    drawn = dict(zip(whole, _draw_whole(_pick(logits, whole), [rows[i] for i in whole]), strict=True))
    drawn |= dict(zip(filtered, _draw_filtered(_pick(logits, filtered), [rows[i] for i in filtered]), strict=True))
    return [drawn[index] for index in range(len(rows))]


def most_likely(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest of each row: values and ids [R, count], larger first, then the lower id."""
    if count == logits.shape[1]:
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
        return values, ids
    ids = logits.topk(count, sorted=False).indices.sort(dim=-1).values
    values, order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def has_filter(row: SampleRow) -> bool:
    params = row.params
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def _pick(logits: torch.Tensor, indices: list[int]) -> torch.Tensor:
    return logits if len(indices) == len(logits) else logits[indices]


def _draw_whole(logits: torch.Tensor, rows: list[SampleRow]) -> list[int]:
    if not rows:
        return []
    weights = _weights(logits, _temperatures(rows, logits))
    return _invert(weights.cumsum(dim=-1, dtype=torch.float64), rows)


def _draw_filtered(logits: torch.Tensor, rows: list[SampleRow]) -> list[int]:
    if not rows:
        return []
    values, ids = most_likely(logits, min(CANDIDATES, logits.shape[1]))
    sums, exact = _filter(values, logits, rows)
    choice = torch.tensor(_invert(sums, rows), device=logits.device)
    token_ids: list[int] = ids.gather(1, choice[:, None])[:, 0].tolist()
    for index in (~exact).nonzero()[:, 0].tolist():
        values, ids = most_likely(logits[index : index + 1], logits.shape[1])
        sums, _ = _filter(values, logits[index : index + 1], [rows[index]])
        token_ids[index] = int(ids[0, _invert(sums, [rows[index]])[0]])
    return token_ids


def _filter(values: torch.Tensor, logits: torch.Tensor, rows: list[SampleRow]) -> tuple[torch.Tensor, torch.Tensor]:
    """Candidates [R, K] -> running sums [R, K] that stop growing after the last kept one, and whether none is missing.

    Every filter keeps a run of the most likely tokens, so its answer is a length.
    """
    temperature = _temperatures(rows, logits)
    weights = _weights(values, temperature)
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    kept = _within_top_k(values, rows) & (weights >= _column([row.params.min_p for row in rows], weights))
    count = kept.sum(dim=-1, keepdim=True)
    total = sums.gather(1, count - 1)
    may_miss = (count == values.shape[1])[:, 0] & (values.shape[1] < logits.shape[1])
    if may_miss.any():
        total[may_miss] = _weights(logits[may_miss], temperature[may_miss]).cumsum(-1, dtype=torch.float64)[:, -1:]
    top_p = _column([row.params.top_p for row in rows], sums)
    last = (kept & (sums - weights < top_p * total)).sum(dim=-1, keepdim=True) - 1
    limited = torch.tensor([row.params.top_k > 0 or row.params.min_p > 0 for row in rows], device=logits.device)
    ends_in_tie = values.gather(1, last)[:, 0] == values[:, -1]
    return torch.minimum(sums, sums.gather(1, last)), ~(may_miss & (limited | ends_in_tie))


def _within_top_k(values: torch.Tensor, rows: list[SampleRow]) -> torch.Tensor:
    """Tokens as likely as the k-th are kept with it."""
    count = values.shape[1]
    rank = [min(row.params.top_k, count) if row.params.top_k > 0 else count for row in rows]
    return values >= values.gather(1, torch.tensor(rank, device=values.device)[:, None] - 1)


def _weights(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """exp((logits - maximum) / temperature): at most 1, whatever the temperature."""
    return ((logits - logits.amax(dim=-1, keepdim=True)) / temperature).exp_()


def _invert(sums: torch.Tensor, rows: list[SampleRow]) -> list[int]:
    """The first index whose running sum is above uniform * total."""
    total = sums[:, -1:]
    target = _column([row.uniform() for row in rows], sums) * total
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    indices: list[int] = torch.searchsorted(sums, target, right=True)[:, 0].tolist()
    return indices


def _temperatures(rows: list[SampleRow], like: torch.Tensor) -> torch.Tensor:
    return _column([max(row.params.temperature, LEAST_TEMPERATURE) for row in rows], like)


def _column(values: list[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
