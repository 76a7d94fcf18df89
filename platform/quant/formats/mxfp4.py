"""MXFP4 as gpt-oss stores it: 32 inputs are 16 bytes of float4_e2m1 and one scale, 2 ** (stored - 127).

Even inputs are in the lower half bytes. Twice a float4 is a small integer: a weight is one of 8 bits, without rounding.
"""

from collections.abc import Mapping
from typing import Final

import torch

from ..weights.weights import IntegerWeight
from .specification import Linear, TensorSpec, tensor

BLOCK: Final = 32
BLOCKS, SCALES = "blocks", "scales"
"""What follows the name of the linear."""
DOUBLED: Final = (0, 1, 2, 3, 4, 6, 8, 12)
"""Twice what each float4 without its sign, the highest of four bits, stands for."""
CENTRE: Final = 128
"""The code of zero."""
LARGEST: Final = 252
"""Of the stored exponents of scales: with a larger one a weight may be no float32."""


def rows(inputs: int) -> list[tuple[str, tuple[int, ...]]]:
    """The tensors of a linear and the shape of what an output has in each."""
    blocks = inputs // BLOCK
    return [(BLOCKS, (blocks, BLOCK // 2)), (SCALES, (blocks,))]


def tensors(linear: Linear) -> dict[str, TensorSpec]:
    if linear.in_features % BLOCK:
        raise ValueError(f"{linear.name} has {linear.in_features} inputs, and mxfp4 has blocks of {BLOCK}")
    shapes = {name: (linear.out_features, *row) for name, row in rows(linear.in_features)}
    return {BLOCKS: tensor(["U8"], shapes[BLOCKS]), SCALES: tensor(["U8", "F8_E8M0"], shapes[SCALES])}


def read(linear: Linear, read_tensors: Mapping[str, torch.Tensor]) -> IntegerWeight:
    """ValueError for a scale that no weight can have."""
    blocks, exponents = read_tensors[BLOCKS], read_tensors[SCALES].view(torch.uint8)
    wrong = int((exponents > LARGEST).sum())
    if wrong:
        raise ValueError(
            f"{linear.name}.{SCALES} has {wrong} of {exponents.numel()} exponents above {LARGEST}, the first is "
            f"{int(exponents[exponents > LARGEST][0])}"
        )
    signed = torch.tensor([*DOUBLED, *(-value for value in DOUBLED)], dtype=torch.int16)
    codes = torch.stack([blocks & 0xF, blocks >> 4], dim=-1).reshape(linear.out_features, linear.in_features)
    scales = torch.ldexp(torch.ones(exponents.shape), exponents.int() - 128)
    return IntegerWeight(
        bits=8,
        values=(signed[codes.int()] + CENTRE).to(torch.uint8),
        scales=scales,
        zeros=torch.full(exponents.shape, CENTRE, dtype=torch.uint8),
    )
