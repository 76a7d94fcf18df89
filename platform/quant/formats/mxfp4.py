"""MXFP4 as gpt-oss stores it: 32 inputs are 16 bytes of float4_e2m1fn and one scale, 2 ** (stored - 127).

Even inputs are in the lower half bytes.
"""

from collections.abc import Mapping
from typing import Final

import torch

from ..weights.weights import FLOAT4_BLOCK as BLOCK
from ..weights.weights import Float4Weight
from .specification import Linear, TensorSpec, tensor

BLOCKS, SCALES = "blocks", "scales"
"""What follows the name of the linear."""
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


def read(linear: Linear, read_tensors: Mapping[str, torch.Tensor]) -> Float4Weight:
    """ValueError for a scale that no weight can have."""
    exponents = read_tensors[SCALES].view(torch.uint8)
    wrong = int((exponents > LARGEST).sum())
    if wrong:
        raise ValueError(
            f"{linear.name}.{SCALES} has {wrong} of {exponents.numel()} exponents above {LARGEST}, the first is "
            f"{int(exponents[exponents > LARGEST][0])}"
        )
    return Float4Weight(halves=read_tensors[BLOCKS].flatten(1), exponents=exponents)
