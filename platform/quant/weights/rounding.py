"""Round to nearest: float weights [out, in] to the forms of weights.py.

What quantizes at load and what writes quantized checkpoints share this arithmetic.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Final

import torch

from .finite import check_finite
from .weights import Float8Weight, IntegerWeight

FLOAT8_MAX: Final = torch.finfo(torch.float8_e4m3fn).max
BLOCK_WEIGHTS: Final = 1 << 18
USUAL_GROUPS: Final = (16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerGrid:
    """The values scale * (n - zero), n from 0 to 2 ** bits - 1, with a scale and a zero for each group of weights."""

    bits: int
    """4 or 8."""
    symmetric: bool
    """Every zero is 2 ** (bits - 1), so that signed integers say the same; else it follows the group's range."""
    scale_dtype: torch.dtype = torch.float32
    """What a checkpoint keeps scales in. They are rounded to it before integers are chosen, which adds no error."""

    @property
    def largest(self) -> int:
        return (1 << self.bits) - 1

    def fit(self, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Groups of weights [..., size] -> scales [...] float32 and zeros [...] float32 whose grid spans them."""
        low, high = groups.amin(-1).float().clamp(max=0), groups.amax(-1).float().clamp(min=0)
        if self.symmetric:
            middle = 1 << (self.bits - 1)
            scales = self._stored(torch.maximum(high / (middle - 1), -low / middle))
            return scales, torch.full_like(scales, middle)
        scales = self._stored((high - low) / self.largest)
        return scales, (-low / scales).round().clamp(0, self.largest)

    def nearest(self, weights: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
        """The n of each weight, float32; the three broadcast."""
        return (weights.float() / scales).add_(zeros).round_().clamp_(0, self.largest)

    def rounded(self, weight: torch.Tensor, group_size: int | None) -> torch.Tensor:
        """What is left of `weight` [out, in] on this grid, float32."""
        groups = _groups(weight, group_size)
        scales, zeros = (part.unsqueeze(-1) for part in self.fit(groups))
        return self.nearest(groups, scales, zeros).sub_(zeros).mul_(scales).reshape(weight.shape)

    def _stored(self, scales: torch.Tensor) -> torch.Tensor:
        """A group of zeros, or of weights too small for the dtype, gets 1: all its integers are then the zero."""
        stored = scales.to(self.scale_dtype).float()
        return torch.where(stored > 0, stored, 1.0)


def round_to_integers(weight: torch.Tensor, grid: IntegerGrid, group_size: int | None) -> IntegerWeight:
    """Each weight on the nearest point of its group's grid: off by half a scale, and by what rounding the scale took.

    `group_size`: consecutive inputs that share a scale, None for all of an output's. ValueError when it does not divide
    them, or for weights that are no numbers.
    """
    values = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    fitted = []
    for rows in _row_blocks(weight):
        groups = _groups(weight[rows], group_size)
        scales, zeros = grid.fit(groups)
        fitted.append((scales, zeros.to(torch.uint8)))
        values[rows] = grid.nearest(groups, scales.unsqueeze(-1), zeros.unsqueeze(-1)).reshape(-1, weight.shape[1])
    scales, zeros = (torch.cat(parts) for parts in zip(*fitted, strict=True))
    return IntegerWeight(bits=grid.bits, values=values, scales=scales, zeros=zeros)


def round_to_float8(weight: torch.Tensor, scale_dtype: torch.dtype = torch.float32) -> Float8Weight:
    """e4m3 with one scale for each output: off by 1/16 of a weight at most, of the smallest by 2**-10 of a scale.

    `scale_dtype`: as of an IntegerGrid. ValueError for weights that are no numbers.
    """
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device)
    fitted = []
    for rows in _row_blocks(weight):
        largest = weight[rows].abs().amax(1, keepdim=True).float()
        scales = (largest / FLOAT8_MAX).to(scale_dtype).float()
        scales = torch.where(scales > 0, scales, 1.0)
        fitted.append(scales)
        values[rows] = (weight[rows].float() / scales).clamp_(-FLOAT8_MAX, FLOAT8_MAX).to(torch.float8_e4m3fn)
    return Float8Weight(values=values, scales=torch.cat(fitted), block=(1, weight.shape[1]))


def check_group_size(group_size: int, inputs: int, others: tuple[int, ...] = ()) -> None:
    """ValueError unless it divides `inputs`; it names sizes that divide them and `others` too."""
    if group_size < 1:
        raise ValueError(f"the group size must be 1 or more, got {group_size}")
    if inputs % group_size:
        common = gcd(inputs, *others)
        fitting = [str(size) for size in USUAL_GROUPS if common % size == 0] or [str(common)]
        choices = " or ".join(fitting)
        raise ValueError(
            f"the group size {group_size} does not divide the {inputs} inputs of a linear; choose {choices}"
        )


def _row_blocks(weight: torch.Tensor) -> Iterator[slice]:
    """Of finite rows that are rounded at a time: the floats that it takes are a few of a block's. ValueError as
    `check_finite`."""
    step = max(1, BLOCK_WEIGHTS // weight.shape[1])
    for first in range(0, len(weight), step):
        rows = slice(first, first + step)
        check_finite(weight[rows])
        yield rows


def _groups(weight: torch.Tensor, group_size: int | None) -> torch.Tensor:
    """[out, groups, group_size]."""
    outputs, inputs = weight.shape
    size = inputs if group_size is None else group_size
    check_group_size(size, inputs)
    return weight.reshape(outputs, inputs // size, size)
