"""Weights as quantized checkpoints keep them, out of whichever packing: the one form that every reader makes and every
scheme takes. All shapes are of one linear, W [out, in].
"""

from dataclasses import dataclass
from typing import Final

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerWeight:
    """W[o, i] = scales[o, g] * (values[o, i] - zeros[o, g]), g the group of input i."""

    bits: int
    """4 or 8."""
    values: torch.Tensor
    """[out, in] uint8, below 2 ** bits. Signed checkpoints are moved up by 2 ** (bits - 1), their zeros with them."""
    scales: torch.Tensor
    """[out, groups] float32."""
    zeros: torch.Tensor
    """[out, groups] uint8."""
    group_of: torch.Tensor | None = None
    """[in] int32, the group of each input where they do not lie in order (activation order); None: in equal runs."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    def dequantized(self) -> torch.Tensor:
        """[out, in] float32."""
        if self.group_of is not None:
            group_of = self.group_of.long()
            return self.scales[:, group_of] * (self.values.float() - self.zeros[:, group_of].float())
        groups = self.values.float().reshape(*self.scales.shape, -1)
        return groups.sub_(self.zeros.float().unsqueeze(-1)).mul_(self.scales.unsqueeze(-1)).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Float8Inputs:
    """What the scheme of a weight does to the inputs before the product: float8_e4m3fn times a scale. Only devices that
    multiply float8 do it; the others take the inputs as they are."""

    scale: float | None = None
    """Of all inputs, as calibrated; None: each token's own, the least with which nothing is clipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Weight:
    """W[o, i] = scales[o // rows, i // columns] * values[o, i], with (rows, columns) the size of a block."""

    values: torch.Tensor
    """[out, in] float8_e4m3fn."""
    scales: torch.Tensor
    """[ceil(out / rows), ceil(in / columns)] float32: [1, 1] for one of the tensor, [out, 1] for one a channel."""
    block: tuple[int, int]
    """(rows, columns)."""
    inputs: Float8Inputs | None = None
    """None: a scheme of weights only."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    def dequantized(self) -> torch.Tensor:
        """[out, in] float32."""
        rows, columns = (torch.arange(size) // block for size, block in zip(self.shape, self.block, strict=True))
        return self.scales[rows][:, columns] * self.values.float()


FLOAT4: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What each float4_e2m1fn without its sign, the highest of four bits, stands for."""
FLOAT4_BLOCK: Final = 32
"""Inputs of one scale."""
FLOAT4_BIAS: Final = 127
"""What the exponent of a scale is stored above itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Float4Weight:
    """W[o, i] = 2 ** (exponents[o, i // 32] - 127) * code[o, i]: MXFP4."""

    halves: torch.Tensor
    """[out, in / 2] uint8: two float4_e2m1fn a byte, even inputs in the lower half."""
    exponents: torch.Tensor
    """[out, in / 32] uint8, float8_e8m0fnu of at most 252."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.halves.shape[0], 2 * self.halves.shape[1]

    def codes(self) -> torch.Tensor:
        """[out, in] uint8 below 16."""
        return torch.stack([self.halves & 15, self.halves >> 4], dim=-1).view(self.shape)

    def dequantized(self) -> torch.Tensor:
        """[out, in] float32."""
        values = float4_values(self.codes()).view(*self.exponents.shape, FLOAT4_BLOCK)
        return torch.ldexp(values, self.exponents.int().unsqueeze(-1) - FLOAT4_BIAS).view(self.shape)


def float4_values(codes: torch.Tensor) -> torch.Tensor:
    """codes, uint8 below 16 -> float32 of the same shape."""
    signed = torch.tensor([*FLOAT4, *(-value for value in FLOAT4)], device=codes.device)
    return signed[codes.int()]


CodedWeight = IntegerWeight | Float8Weight | Float4Weight
"""Codes and their scales."""
Weight = torch.Tensor | CodedWeight
"""A tensor: float weights, as they are."""
