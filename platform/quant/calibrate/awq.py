"""AWQ: scale up the inputs that matter before rounding, and clip what rounding need not reach (arXiv 2306.00978).

y = W x = (W diag(s)) (diag(1/s) x). W diag(s) is what is rounded; 1/s goes into whatever made x, a norm or a linear, so
that nothing is computed at run time. s = magnitudes ** ratio, the ratio that leaves the least error on sampled rows.
"""

from collections.abc import Iterable
from typing import Final

import torch

from ..weights.rounding import IntegerGrid

RATIOS: Final = 20
"""Steps from ratio 0, which is no scaling, towards 1."""
CLIPS: Final = tuple(1 - step / 20 for step in range(10))
"""Of a group's largest magnitude, what may be left of its range."""
CHUNK_WEIGHTS: Final = 1 << 19
"""Weights of whole outputs that are compared at a time: eight floats of each are in memory."""


def search_scales(
    weights: Iterable[torch.Tensor],
    rows: torch.Tensor,
    magnitudes: torch.Tensor,
    grid: IntegerGrid,
    group_size: int,
) -> torch.Tensor:
    """s [in] float32 for linears that read the same x; ones where no scaling is best.

    weights: each [out, in], taken one after the other; rows [T, in]; magnitudes [in]. Inputs that must share a scale
    have the same magnitude.
    """
    candidates = [scales_of(magnitudes, step / RATIOS) for step in range(RATIOS)]
    errors = torch.zeros(RATIOS, dtype=torch.float64)
    for weight in weights:
        for chunk in torch.split(weight, outputs_at_once(weight)):
            floats = chunk.float()
            for step, scales in enumerate(candidates):
                change = grid.rounded(floats * scales, group_size).div_(scales).sub_(floats)
                errors[step] += (rows.float() @ change.T).square_().sum(dtype=torch.float64).cpu()
    usable = errors.isfinite()
    return candidates[int(errors.where(usable, torch.inf).argmin())] if usable.any() else torch.ones_like(magnitudes)


def outputs_at_once(weight: torch.Tensor) -> int:
    return max(1, CHUNK_WEIGHTS // weight.shape[1])


def scales_of(magnitudes: torch.Tensor, ratio: float) -> torch.Tensor:
    """[in], positive and around 1; inputs that were never seen count as the smallest that was."""
    seen = magnitudes > 0
    if not seen.any():
        return torch.ones_like(magnitudes)
    scales = magnitudes.clamp(min=magnitudes[seen].min()) ** ratio
    scales = scales / (scales.max() * scales.min()).sqrt()
    return scales.clamp(1e-4, 1e4)


def clip(weight: torch.Tensor, products: torch.Tensor, grid: IntegerGrid) -> torch.Tensor:
    """`weight` [out, in] float32, each group cut to the range that leaves its outputs nearest, on the rows that the
    `products` are of."""
    (outputs, inputs), group_size = weight.shape, products.shape[-1]
    groups = weight.float().reshape(outputs, inputs // group_size, group_size)
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


def group_products(rows: torch.Tensor, group_size: int) -> torch.Tensor:
    """rows [T, in] -> [groups, group_size, group_size]: the mean of x x' within each group of inputs."""
    grouped = rows.float().reshape(len(rows), -1, group_size).transpose(0, 1)
    return grouped.transpose(1, 2) @ grouped / len(rows)
