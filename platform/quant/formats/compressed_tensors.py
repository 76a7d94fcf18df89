"""compressed-tensors' integers: W[o, i] = weight_scale[o, g] * (weight[o, i] - weight_zero_point[o, g]), signed.

pack-quantized moves values up by 2 ** (bits - 1) and packs neighbouring inputs into words, of zero points neighbouring
outputs; int-quantized has a byte for each.
"""

from collections.abc import Mapping

import torch

from ..config.layouts import IntegerLayout
from ..weights.weights import IntegerWeight
from .bits import unpack, unsigned
from .checks import checked_order, checked_scales, checked_zeros, refuse_lost_values, refuse_zero_points
from .specification import FLOATS, Linear, TensorSpec, tensor


def tensors(layout: IntegerLayout, linear: Linear) -> dict[str, TensorSpec]:
    outputs, inputs, each = linear.out_features, linear.in_features, 32 // layout.bits
    groups = linear.groups(layout.group_size)
    scales = (1,) if layout.one_scale else (outputs, groups)
    packed = (-(-outputs // each), groups)
    zeros = TensorSpec(
        ((("I32",), packed), (("I8",), scales)) if layout.packed and not layout.one_scale else ((("I8",), scales),),
        required=not layout.symmetric,
    )
    specs = {
        "weight_scale": tensor(FLOATS, scales, *([()] if layout.one_scale else [])),
        "weight_zero_point": tensor(["I8", *FLOATS], scales, required=False) if layout.symmetric else zeros,
    }
    if layout.ordered:
        specs["weight_g_idx"] = tensor(["I32", "I64"], (inputs,))
    if layout.packed:
        specs["weight_packed"] = tensor(["I32"], (outputs, -(-inputs // each)))
        specs["weight_shape"] = tensor(["I64", "I32"], (2,))
    else:
        specs["weight"] = tensor(["I8"], (outputs, inputs))
    return specs


def read(layout: IntegerLayout, linear: Linear, read_tensors: Mapping[str, torch.Tensor]) -> IntegerWeight:
    """ValueError for scales, zero points, values and groups that no weight can have."""
    name, groups = f"{linear.name}.weight_scale", linear.groups(layout.group_size)
    shape = (linear.out_features, groups)
    weight = IntegerWeight(
        bits=layout.bits,
        values=_values(layout, linear, read_tensors),
        scales=checked_scales(name, read_tensors["weight_scale"]).expand(shape).contiguous(),
        zeros=_zeros(layout, linear, read_tensors.get("weight_zero_point"), shape),
        group_of=checked_order(
            f"{linear.name}.weight_g_idx", read_tensors.get("weight_g_idx"), linear.in_features, groups
        ),
    )
    return refuse_lost_values(name, weight)


def _values(layout: IntegerLayout, linear: Linear, read_tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if not layout.packed:
        return _moved_up(f"{linear.name}.weight", read_tensors["weight"], layout.bits)
    said, shape = read_tensors["weight_shape"].tolist(), [linear.out_features, linear.in_features]
    if said != shape:
        raise ValueError(f"{linear.name}.weight_shape says {said}, the model needs {shape}")
    return unpack(read_tensors["weight_packed"], layout.bits)[:, : linear.in_features].contiguous()


def _zeros(layout: IntegerLayout, linear: Linear, stored: torch.Tensor | None, shape: tuple[int, int]) -> torch.Tensor:
    name = f"{linear.name}.weight_zero_point"
    if layout.symmetric:
        refuse_zero_points(name, stored)
        return torch.full(shape, 1 << (layout.bits - 1), dtype=torch.uint8)
    assert stored is not None, "verified before"
    if stored.dtype == torch.int32:
        return unpack(stored.T, layout.bits)[:, : linear.out_features].T.contiguous()
    lowest = -(1 << (layout.bits - 1))
    return checked_zeros(name, stored.int(), layout.bits, lowest).expand(shape).contiguous()


def _moved_up(name: str, values: torch.Tensor, bits: int) -> torch.Tensor:
    middle = 1 << (bits - 1)
    wrong = values[(values < -middle) | (values >= middle)] if bits < 8 else values[:0]
    if wrong.numel():
        raise ValueError(f"{name} has {wrong.numel()} values outside of {-middle} to {middle - 1} ({bits} bits)")
    return unsigned(values, bits)
