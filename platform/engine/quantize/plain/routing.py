"""How much each expert counts for each token, plainly: what the served path computes by other code."""

import torch

from ...model.description.feed_forward import RoutingSpec


def expert_weights(spec: RoutingSpec, logits: torch.Tensor, correction: torch.Tensor | None) -> torch.Tensor:
    """logits [..., E] -> [..., E]: zero for experts that a token does not have."""
    if spec.scores == "softmax_of_chosen":
        return torch.softmax(logits.masked_fill(~_chosen(spec, logits), float("-inf")), dim=-1) * spec.scale
    scores = torch.softmax(logits, dim=-1) if spec.scores == "softmax" else torch.sigmoid(logits)
    weights = scores * _chosen(spec, scores if correction is None else scores + correction)
    if spec.normalizes:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * spec.scale


def _chosen(spec: RoutingSpec, scores: torch.Tensor) -> torch.Tensor:
    """[..., E] bool: the experts of each token."""
    if spec.num_groups > 1:
        groups = scores.view(*scores.shape[:-1], spec.num_groups, -1)
        best = _largest(groups.topk(2, dim=-1).values.sum(-1), spec.groups_per_token)
        scores = groups.masked_fill(~best[..., None], float("-inf")).flatten(-2)
    return _largest(scores, spec.experts_per_token)


def _largest(scores: torch.Tensor, count: int) -> torch.Tensor:
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    return chosen.scatter_(-1, scores.topk(count, dim=-1).indices, torch.ones_like(chosen))
