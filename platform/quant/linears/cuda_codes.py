"""From the one form of quantized weights to the codes that the CUDA kernels pack."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..kernels.cuda.layout import FLOAT4, FLOAT8, INTEGER4, INTEGER8, Codes
from ..kernels.cuda.tiles import choose_run
from ..weights.weights import FLOAT4_BLOCK, CodedWeight, Float4Weight, Float8Weight, IntegerWeight

FLOAT8_NAN = 0x7F
"""The bits of NaN but for its sign."""


def to_codes(weight: CodedWeight) -> Codes:
    """Raises ValueError for groups that no kernel takes and for values that are not numbers."""
    if isinstance(weight, IntegerWeight):
        codes = _from_integers(weight)
    else:
        codes = _from_float4(weight) if isinstance(weight, Float4Weight) else _from_float8(weight)
    if codes.scales.shape[1] > 1:
        choose_run(codes.group)
    return codes


def merge_alike(parts: Sequence[Codes]) -> list[Codes]:
    """Neighbours that are stored alike become one, outputs in order."""
    merged = [parts[0]]
    for part in parts[1:]:
        if _alike(merged[-1], part):
            merged[-1] = _concatenate(merged[-1], part)
        else:
            merged.append(part)
    return merged


def scales_of_rows(weight: Float8Weight) -> torch.Tensor:
    """[out, blocks of inputs] float32."""
    return weight.scales[torch.arange(weight.shape[0]) // weight.block[0]]


def _from_integers(weight: IntegerWeight) -> Codes:
    inputs, groups = weight.shape[1], weight.scales.shape[1]
    return Codes(
        format=INTEGER4 if weight.bits == 4 else INTEGER8,
        values=weight.values,
        scales=weight.scales,
        zeros=weight.zeros,
        group=inputs // groups,
        order=None if groups == 1 else _order(weight.group_of, inputs // groups),
    )


def _order(group_of: torch.Tensor | None, group: int) -> torch.Tensor | None:
    """Inputs by their groups, each group's in their own order; None where they lie so."""
    if group_of is None or bool((group_of[1:] >= group_of[:-1]).all()):
        return None
    if bool((torch.bincount(group_of) != group).any()):
        raise ValueError(f"groups of different sizes, each must have {group} inputs")
    return torch.argsort(group_of, stable=True)


def _from_float8(weight: Float8Weight) -> Codes:
    bits = weight.values.view(torch.uint8)
    if bool(((bits & FLOAT8_NAN) == FLOAT8_NAN).any()):
        raise ValueError("a float8 value that is not a number")
    zeros = torch.zeros(len(bits), 1, dtype=torch.uint8)
    return Codes(format=FLOAT8, values=bits, scales=scales_of_rows(weight), zeros=zeros, group=weight.block[1])


def _from_float4(weight: Float4Weight) -> Codes:
    zeros = torch.zeros(weight.shape[0], 1, dtype=torch.uint8)
    return Codes(format=FLOAT4, values=weight.codes(), scales=weight.exponents, zeros=zeros, group=FLOAT4_BLOCK)


def _alike(a: Codes, b: Codes) -> bool:
    same = (a.format, a.scales.shape[1], a.group) == (b.format, b.scales.shape[1], b.group)
    if a.order is None or b.order is None:
        return same and a.order is b.order
    return same and torch.equal(a.order, b.order)


def _concatenate(a: Codes, b: Codes) -> Codes:
    values, scales = torch.cat([a.values, b.values]), torch.cat([a.scales, b.scales])
    return replace(a, values=values, scales=scales, zeros=torch.cat([a.zeros, b.zeros]))
