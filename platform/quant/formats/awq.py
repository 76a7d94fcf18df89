"""AutoAWQ's gemm layout: W[o, i] = scales[g, o] * (qweight[i, o] - qzeros[g, o]).

Words hold 8 outputs of one input, in the order 0 2 4 6 1 3 5 7 from the lowest bits up.
"""

from collections.abc import Mapping
from typing import Final

import torch

from ..config.layouts import AwqLayout
from ..weights.weights import IntegerWeight
from .checks import checked_scales, refuse_lost_values
from .specification import FLOATS, Linear, TensorSpec, tensor

BITS: Final = 4
PLACES: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in its word each output lies."""
MIDDLE: Final = 8


def tensors(layout: AwqLayout, linear: Linear) -> dict[str, TensorSpec]:
    groups, words = linear.groups(layout.group_size), linear.words(linear.out_features, BITS)
    return {
        "qweight": tensor(["I32"], (linear.in_features, words)),
        "qzeros": tensor(["I32"], (groups, words), required=layout.has_zeros),
        "scales": tensor(FLOATS, (groups, linear.out_features)),
    }


def read(layout: AwqLayout, linear: Linear, read_tensors: Mapping[str, torch.Tensor]) -> IntegerWeight:
    """ValueError for scales that no weight can have."""
    name = f"{linear.name}.scales"
    scales = checked_scales(name, read_tensors["scales"].T.contiguous())
    packed = read_tensors.get("qzeros")
    zeros = torch.full(scales.shape, MIDDLE, dtype=torch.uint8) if packed is None else _outputs_first(packed)
    weight = IntegerWeight(bits=BITS, values=_outputs_first(read_tensors["qweight"]), scales=scales, zeros=zeros)
    return refuse_lost_values(name, weight)


def _outputs_first(words: torch.Tensor) -> torch.Tensor:
    """[n, out / 8] int32 -> [out, n] uint8."""
    packed = words.T.flatten().view(torch.uint8).view(words.shape[1], len(words), 4)
    values = torch.empty(words.shape[1], len(PLACES), len(words), dtype=torch.uint8)
    for output, place in enumerate(PLACES):
        pairs = packed[:, :, place // 2]
        values[:, output] = pairs >> 4 if place % 2 else pairs & 15
    return values.flatten(0, 1)
