# mypy: allow-untyped-decorators
"""From router logits to the experts of each token, and from these to the tokens of each expert. All float32.

Shapes: T tokens, E experts, K experts of a token; P = T K pairs of a token and an expert, pair t K + j.
A token's row is computed alone and in one order: its experts and weights are the same bits in every batch.
"""

from typing import Final

import numpy as np
import torch
from numba import njit, prange

from ...kernels.vector import Array

SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = range(3)
LEAST_SUM: Final = np.float32(1e-20)
"""Is added to a sum before weights are divided by it."""


def route_reference(
    logits: torch.Tensor, correction: torch.Tensor, kind: int, chosen: int, normalizes: bool, scale: float, groups: int,
    groups_per_token: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """logits [T, E] float32, correction [E] or [0] -> experts [T, K] int64 and weights [T, K] float32, the largest
    first; of equals the one with the smaller number."""
    scores = [logits.softmax(-1), logits.sigmoid(), logits][kind]
    judged = scores + correction if len(correction) else scores
    if groups > 1:
        by_group = judged.view(len(judged), groups, -1)
        sums = by_group.sort(descending=True).values[..., :2].sum(-1)
        best = sums.sort(descending=True, stable=True).indices[:, :groups_per_token]
        is_in = torch.zeros_like(sums, dtype=torch.bool).scatter_(1, best, torch.ones_like(best, dtype=torch.bool))
        judged = by_group.masked_fill(~is_in[..., None], float("-inf")).flatten(1)
    experts = judged.sort(descending=True, stable=True).indices[:, :chosen]
    weights = scores.gather(1, experts)
    if kind == SOFTMAX_OF_CHOSEN:
        weights = weights.softmax(-1)
    if normalizes:
        weights = weights / (weights.sum(-1, keepdim=True) + float(LEAST_SUM))
    return experts, weights * scale


@njit
def _softmax(values: Array) -> None:
    largest = values[0]
    for value in values:
        largest = max(largest, value)
    total = np.float32(0)
    for at in range(len(values)):
        values[at] = np.exp(values[at] - largest)
        total += values[at]
    for at in range(len(values)):
        values[at] /= total


@njit
def _largest(values: Array, is_in: Array, found: Array) -> None:
    """found [K]: the places of the K largest values that are `is_in`, the largest first, of equals the first. Any K of
    them, if some are no numbers."""
    count = 0
    for at in range(len(values)):
        if not is_in[at] or (count == len(found) and not values[at] > values[found[count - 1]]):
            continue
        place = min(count, len(found) - 1)
        while place > 0 and values[at] > values[found[place - 1]]:
            found[place] = found[place - 1]
            place -= 1
        found[place] = at
        count = min(count + 1, len(found))


@njit
def _choose_groups(judged: Array, groups: int, is_in: Array, best: Array) -> None:
    """is_in [E]: whether an expert is in one of the groups [G] with the largest sums of two."""
    size = len(judged) // groups
    sums, two, everyone = np.empty(groups, np.float32), np.empty(2, np.int64), np.ones(len(judged), np.bool_)
    for group in range(groups):
        members = judged[group * size : (group + 1) * size]
        _largest(members, everyone, two)
        sums[group] = members[two[0]] + members[two[1]]
    _largest(sums, everyone, best)
    is_in[:] = False
    for group in best:
        is_in[group * size : (group + 1) * size] = True


@njit(cache=True, nogil=True, parallel=True)
def route(
    logits: Array, correction: Array, kind: int, normalizes: bool, scale: float, groups: int, groups_per_token: int,
    experts: Array, weights: Array,
) -> None:  # fmt: skip
    """logits [T, E], correction [E] or [0] -> experts [T, K] int64, weights [T, K] float32, as `route_reference`."""
    for token in prange(len(logits)):
        scores, is_in = logits[token].copy(), np.ones(logits.shape[1], np.bool_)
        if kind == SOFTMAX:
            _softmax(scores)
        elif kind == SIGMOID:
            for at in range(len(scores)):
                scores[at] = np.float32(1) / (np.float32(1) + np.exp(-scores[at]))
        judged = scores.copy()
        if len(correction):
            for at in range(len(judged)):
                judged[at] += correction[at]
        if groups > 1:
            _choose_groups(judged, groups, is_in, np.empty(groups_per_token, np.int64))
        _largest(judged, is_in, experts[token])
        own = weights[token]
        for place in range(len(own)):
            own[place] = scores[experts[token, place]]
        if kind == SOFTMAX_OF_CHOSEN:
            _softmax(own)
        total = np.float32(0)
        for place in range(len(own)):
            total += own[place]
        for place in range(len(own)):
            if normalizes:
                own[place] /= total + LEAST_SUM
            own[place] *= np.float32(scale)


@njit(cache=True, nogil=True)
def group_pairs(experts: Array, starts: Array, pairs: Array, places: Array) -> None:
    """experts [P] -> starts [E + 1]: where each one's rows begin; pairs [P]: the pair of each row, those of an expert
    side by side and in their order; places [P]: the row of each pair."""
    starts[:] = 0
    for pair in range(len(experts)):
        starts[experts[pair] + 1] += 1
    for expert in range(len(starts) - 1):
        starts[expert + 1] += starts[expert]
    following = starts[:-1].copy()
    for pair in range(len(experts)):
        row = following[experts[pair]]
        following[experts[pair]] = row + 1
        pairs[row], places[pair] = pair, row


@njit(cache=True, nogil=True, parallel=True)
def add_shared(output: Array, shared: Array, gate: Array) -> None:
    """output [T, C] += sigmoid(gate [T]) * shared [T, C]; gate [0]: += shared."""
    for token in prange(len(output)):
        factor = np.float32(1)
        if len(gate):
            factor = np.float32(1) / (np.float32(1) + np.exp(-gate[token]))
        for column in range(output.shape[1]):
            output[token, column] += factor * shared[token, column]


def sum_experts_reference(rows: torch.Tensor, places: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """rows [P, C], places [T, K], weights [T, K] -> [T, C]."""
    return (rows[places] * weights[..., None]).sum(1)


@njit(cache=True, nogil=True, parallel=True)
def sum_experts(rows: Array, places: Array, weights: Array, output: Array) -> None:
    """rows [P, C] as grouped, places [P], weights [T, K] -> output [T, C], in the order of each token's experts."""
    chosen = weights.shape[1]
    for token in prange(len(output)):
        output[token, :] = 0
        for place in range(chosen):
            row, weight = places[token * chosen + place], weights[token, place]
            for column in range(output.shape[1]):
                output[token, column] += weight * rows[row, column]
