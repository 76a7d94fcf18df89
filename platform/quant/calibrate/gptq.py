"""GPTQ: round column by column, and let the columns not yet rounded make up for each one's error (arXiv 2210.17323).

With H the Hessian of the squared error and U the upper Cholesky factor of its inverse, rounding column i by
e = w_i - q_i moves each later column j by -e U[i, j] / U[i, i].
"""

from math import gcd
from typing import Final

import torch

from ..weights.finite import check_finite
from ..weights.rounding import IntegerGrid, check_group_size
from ..weights.weights import IntegerWeight

DAMPING: Final = 0.01
"""Of the Hessian's mean diagonal, added to it: few rows leave it without an inverse."""
BLOCK: Final = 32
"""Columns whose errors are carried to the columns after them at once."""


def round_with_hessian(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    grid: IntegerGrid,
    group_size: int,
    *,
    activation_order: bool = False,
    damping: float = DAMPING,
) -> IntegerWeight:
    """weight [out, in], hessian [in, in] -> integers in groups of consecutive inputs.

    `activation_order`: columns of the largest diagonal first, while they have all others to make up for them. The
    groups stay as they lie in the weight, with the scales of the weight as it was; otherwise a group's scales fit what
    its columns have become when their turn comes. ValueError when the size does not divide,
    the weight holds no numbers, or H has no inverse.
    """
    outputs, inputs = weight.shape
    check_group_size(group_size, inputs)
    check_finite(weight)
    scales, zeros = (part.T.contiguous() for part in grid.fit(weight.reshape(outputs, -1, group_size)))
    order = torch.arange(inputs, device=weight.device)
    if activation_order:
        order = hessian.diagonal().argsort(descending=True)
    factor = _inverse_factor(hessian[order][:, order], damping)
    left = weight.float().T[order].contiguous()
    values = torch.empty_like(left)
    block = BLOCK if activation_order else gcd(group_size, BLOCK)
    for first in range(0, inputs, block):
        last = min(first + block, inputs)
        if not activation_order and first % group_size == 0:
            group = first // group_size
            scales[group], zeros[group] = grid.fit(left[first : first + group_size].T)
        groups = order[first:last] // group_size
        corner = factor[first:last, first:last]
        values[order[first:last]], errors = _round_block(left[first:last], corner, grid, scales[groups], zeros[groups])
        left[last:].addmm_(factor[first:last, last:].T, errors, alpha=-1)
    values, zeros = values.T.contiguous().to(torch.uint8), zeros.T.contiguous().to(torch.uint8)
    return IntegerWeight(bits=grid.bits, values=values, scales=scales.T.contiguous(), zeros=zeros)


def _round_block(
    left: torch.Tensor, factor: torch.Tensor, grid: IntegerGrid, scales: torch.Tensor, zeros: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The integers of n columns [n, out], and their errors in units of the factor's diagonal, [n, out].

    A column is a row here. factor [n, n]; scales and zeros [n, out], of each column. `left` is used up.
    """
    values, errors = torch.empty_like(left), torch.empty_like(left)
    for column, (scale, zero) in enumerate(zip(scales, zeros, strict=True)):
        values[column] = grid.nearest(left[column], scale, zero)
        errors[column] = (left[column] - scale * (values[column] - zero)) / factor[column, column]
        left[column:].addr_(factor[column, column:], errors[column], alpha=-1)
    return values, errors


def _inverse_factor(hessian: torch.Tensor, damping: float) -> torch.Tensor:
    """U [in, in], upper, with U' U = the inverse. An input that was never seen has nothing to say about the others."""
    damped = hessian.float().clone()
    diagonal = damped.diagonal()
    diagonal[diagonal == 0] = 1
    diagonal += damping * diagonal.mean()
    lower, failed = torch.linalg.cholesky_ex(damped)
    upper: torch.Tensor
    upper, failed_again = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
    if failed or failed_again:
        raise ValueError(
            f"the Hessian of a linear's inputs has no inverse at damping {damping:g}; give more calibration text, or "
            "choose another scheme"
        )
    return upper
