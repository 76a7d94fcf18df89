"""GPTQ's layout: W[o, i] = scales[g, o] * (qweight[i, o] - qzeros[g, o]) with g = g_idx[i].

Words of qweight hold neighbouring inputs of one output, words of qzeros neighbouring outputs, from the lowest bits up.
Format gptq stores zero points less one, gptq_v2 as they are.
"""

from collections.abc import Mapping

import torch

from ..layouts import GptqLayout
from ..weights import IntegerWeight
from .bits import unpack
from .checks import checked_order, checked_scales, checked_zeros, refuse_lost_values
from .specification import FLOATS, Linear, TensorSpec, tensor


def tensors(layout: GptqLayout, linear: Linear) -> dict[str, TensorSpec]:
    inputs, outputs = linear.in_features, linear.out_features
    groups = linear.groups(layout.group_size)
    return {
        "qweight": tensor(["I32"], (linear.words(inputs, layout.bits), outputs)),
        "qzeros": tensor(["I32"], (groups, linear.words(outputs, layout.bits))),
        "scales": tensor(FLOATS, (groups, outputs)),
        "g_idx": tensor(["I32", "I64"], (inputs,), required=layout.ordered),
    }


def read(layout: GptqLayout, linear: Linear, read_tensors: Mapping[str, torch.Tensor]) -> IntegerWeight:
    """ValueError for scales, zero points and groups that no weight can have."""
    name, groups = f"{linear.name}.scales", linear.groups(layout.group_size)
    weight = IntegerWeight(
        bits=layout.bits,
        values=unpack(read_tensors["qweight"].T, layout.bits),
        scales=checked_scales(name, read_tensors["scales"].T.contiguous()),
        zeros=_zeros(layout, f"{linear.name}.qzeros", unpack(read_tensors["qzeros"], layout.bits)).T.contiguous(),
        group_of=checked_order(f"{linear.name}.g_idx", read_tensors.get("g_idx"), linear.in_features, groups),
    )
    return refuse_lost_values(name, weight)


def _zeros(layout: GptqLayout, name: str, stored: torch.Tensor) -> torch.Tensor:
    """Where all are the middle, some tools store them as gptq_v2 does and say gptq."""
    if not layout.symmetric:
        return checked_zeros(name, stored.int() + layout.zero_offset, layout.bits)
    middle = 1 << (layout.bits - 1)
    first = int(stored.flatten()[0])
    if first not in (middle, middle - 1) or bool((stored != first).any()):
        found = ", ".join(str(value) for value in sorted(set(stored.flatten().tolist()))[:8])
        raise ValueError(
            f"{name} must be the same everywhere, zero point {middle} stored as {middle - 1} or {middle}, as sym in "
            f"config.json is true; it holds {found}"
        )
    return torch.full_like(stored, middle)
