"""AWQ: scale up the inputs that matter before rounding, and clip what rounding need not reach (arXiv 2306.00978).

y = W x = (W diag(s)) (diag(1/s) x). W diag(s) is what is rounded; 1/s goes into whatever made x, a norm or a linear, so
that nothing is computed at run time. s = magnitudes ** ratio, the ratio that leaves the least error on sampled rows.
"""

from collections.abc import Sequence
from typing import Final

import torch

from ..rounding import IntegerGrid

RATIOS: Final = 20
"""Steps from ratio 0, which is no scaling, towards 1."""
CLIPS: Final = tuple(1 - step / 20 for step in range(10))
"""Of a group's largest magnitude, what may be left of its range."""


def search_scales(
    weights: Sequence[torch.Tensor],
    rows: torch.Tensor,
    magnitudes: torch.Tensor,
    grid: IntegerGrid,
    group_size: int,
) -> torch.Tensor:
    """s [in] float32 for linears that read the same x; ones where no scaling is best.

    weights: each [out, in]; rows [T, in]; magnitudes [in]. Inputs that must share a scale have the same magnitude.
    """
    together = torch.cat([weight.float() for weight in weights])
    best, least = torch.ones_like(magnitudes), torch.tensor(float("inf"))
    for step in range(RATIOS):
        scales = scales_of(magnitudes, step / RATIOS)
        change = grid.rounded(together * scales, group_size).div_(scales).sub_(together)
        error = (rows.float() @ change.T).square().mean().cpu()
        if error < least:
            best, least = scales, error
    return best


def scales_of(magnitudes: torch.Tensor, ratio: float) -> torch.Tensor:
    """[in], positive and around 1; inputs that were never seen count as the smallest that was."""
    seen = magnitudes > 0
    if not seen.any():
        return torch.ones_like(magnitudes)
    scales = magnitudes.clamp(min=magnitudes[seen].min()) ** ratio
    scales = scales / (scales.max() * scales.min()).sqrt()
    return scales.clamp(1e-4, 1e4)


def clip(weight: torch.Tensor, rows: torch.Tensor, grid: IntegerGrid, group_size: int) -> torch.Tensor:
    """`weight` [out, in] float32, each group cut to the range that leaves its outputs on `rows` [T, in] nearest."""
    outputs, inputs = weight.shape
    groups = weight.float().reshape(outputs, inputs // group_size, group_size)
    products = _products(rows.float(), group_size)
    largest = groups.abs().amax(-1, keepdim=True)
    best, least = groups, torch.full(groups.shape[:2], float("inf"), device=weight.device)
    for share in CLIPS:
        cut = groups.clamp(-largest * share, largest * share)
        change = grid.rounded(cut.reshape(outputs, inputs), group_size).reshape(groups.shape).sub_(groups)
        error = torch.einsum("ogi,gij->ogj", change, products).mul_(change).sum(-1)
        better = error < least
        best = torch.where(better.unsqueeze(-1), cut, best)
        least = torch.where(better, error, least)
    return best.reshape(outputs, inputs)


def _products(rows: torch.Tensor, group_size: int) -> torch.Tensor:
    """[groups, group_size, group_size]: the mean of x x' within each group of inputs."""
    grouped = rows.reshape(len(rows), -1, group_size).transpose(0, 1)
    return grouped.transpose(1, 2) @ grouped / len(rows)
