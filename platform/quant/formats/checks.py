"""Values that no right checkpoint holds: refused in words, with the tensor's name."""

import dataclasses
from typing import TypeVar

import torch

from ..weights.weights import Float8Weight, IntegerWeight

Quantized = TypeVar("Quantized", IntegerWeight, Float8Weight)


def checked_scales(name: str, scales: torch.Tensor) -> torch.Tensor:
    """In float32. Negative ones are right: some tools choose the sign that leaves the wider range."""
    scales = scales.float()
    wrong = int((~scales.isfinite()).sum())
    if wrong:
        raise ValueError(f"{name} has {wrong} of {scales.numel()} scales that are not finite")
    return scales


def checked_positive(name: str, scales: torch.Tensor) -> torch.Tensor:
    scales = checked_scales(name, scales)
    if bool((scales < 0).any()):
        raise ValueError(f"{name} has {int((scales < 0).sum())} of {scales.numel()} scales below zero")
    return scales


def checked_scale(name: str, scale: torch.Tensor) -> float:
    """Of a tensor of one number, above zero."""
    value = float(checked_scales(name, scale))
    if value <= 0:
        raise ValueError(f"{name} must be above zero, got {value:g}")
    return value


def checked_zeros(name: str, zeros: torch.Tensor, bits: int, lowest: int = 0) -> torch.Tensor:
    """Any integers, counted from `lowest`, as uint8 below 2 ** bits."""
    highest = lowest + (1 << bits) - 1
    wrong = zeros[(zeros < lowest) | (zeros > highest)]
    if len(wrong):
        raise ValueError(
            f"{name} has {len(wrong)} zero points outside of {lowest} to {highest}, the first is {int(wrong[0])}"
        )
    return (zeros - lowest).to(torch.uint8)


def refuse_zero_points(name: str, stored: torch.Tensor | None) -> None:
    """Of a symmetric scheme, whose checkpoints may bring them all the same."""
    if stored is not None and bool((stored.float() != 0).any()):
        raise ValueError(f"{name} must be zero everywhere, as the scheme in config.json is symmetric")


def checked_order(name: str, group_of: torch.Tensor | None, inputs: int, groups: int) -> torch.Tensor | None:
    """[in] int32, None where the groups lie in order; every group must have as many inputs as the others."""
    if group_of is None or bool((group_of == -1).all()):
        return None
    wrong = group_of[(group_of < 0) | (group_of >= groups)]
    if len(wrong):
        raise ValueError(f"{name} names groups outside of 0 to {groups - 1}, the first is {int(wrong[0])}")
    sizes = torch.bincount(group_of, minlength=groups)
    if bool((sizes != inputs // groups).any()):
        group = int((sizes != inputs // groups).nonzero()[0])
        raise ValueError(
            f"{name} gives group {group} {int(sizes[group])} inputs; {inputs} inputs in {groups} groups are "
            f"{inputs // groups} each"
        )
    in_order = torch.arange(inputs) // (inputs // groups)
    return None if torch.equal(group_of.long(), in_order) else group_of.int()


def refuse_lost_values(name: str, weight: Quantized) -> Quantized:
    """`weight` as it is; ValueError where values that are not zero have a scale of zero, as in a file cut off."""
    without = weight.scales == 0
    if bool(without.any()):
        lost = int(dataclasses.replace(weight, scales=without.float()).dequantized().count_nonzero())
        if lost:
            raise ValueError(f"{name} has {int(without.sum())} scales of zero for {lost} weights that are not zero")
    return weight
