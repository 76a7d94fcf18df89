"""GPTQ's layout: W[o, i] = scales[g, o] * (qweight[i, o] - qzeros[g, o]) with g = g_idx[i].

Words of qweight hold neighbouring inputs of one output, words of qzeros neighbouring outputs, from the lowest bits up.
Format gptq stores zero points less one, gptq_v2 as they are. The one is taken off whole words, as GPTQModel does: what
a zero point of 0 lacks is borrowed from the next.
"""

from collections.abc import Mapping

import torch

from ..config.layouts import GptqLayout
from ..weights.weights import IntegerWeight
from .bits import unpack
from .checks import checked_order, checked_scales, refuse_lost_values
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
        zeros=_zeros(layout, f"{linear.name}.qzeros", read_tensors["qzeros"]).T.contiguous(),
        group_of=checked_order(f"{linear.name}.g_idx", read_tensors.get("g_idx"), linear.in_features, groups),
    )
    return refuse_lost_values(name, weight)


def _zeros(layout: GptqLayout, name: str, words: torch.Tensor) -> torch.Tensor:
    """[groups, out] uint8."""
    if layout.symmetric:
        return _middles(layout, name, unpack(words, layout.bits))
    if not layout.zero_offset:
        return unpack(words, layout.bits)
    _refuse_lost_zeros(layout, name, unpack(words, layout.bits))
    ones = sum(1 << place for place in range(0, 32, layout.bits))
    return unpack((words.long() + ones).to(torch.int32), layout.bits)


def _middles(layout: GptqLayout, name: str, stored: torch.Tensor) -> torch.Tensor:
    """Where all are the middle, some tools store them as gptq_v2 does and say gptq."""
    middle = 1 << (layout.bits - 1)
    first = int(stored.flatten()[0])
    if first not in (middle, middle - 1) or bool((stored != first).any()):
        found = ", ".join(str(value) for value in sorted(set(stored.flatten().tolist()))[:8])
        raise ValueError(
            f"{name} must be the same everywhere, zero point {middle} stored as {middle - 1} or {middle}, as sym in "
            f"config.json is true; it holds {found}"
        )
    return torch.full_like(stored, middle)


def _refuse_lost_zeros(layout: GptqLayout, name: str, stored: torch.Tensor) -> None:
    """AutoGPTQ took the one off each value and let what 0 lacked run over the rest of its word, which no reader finds
    again. Zero points of 0 and 1 at a word's end look the same and are refused with them."""
    last = (1 << layout.bits) - 1
    lost = int((stored.view(len(stored), -1, 32 // layout.bits)[:, :, -2:] == last).all(-1).sum())
    if lost:
        raise ValueError(
            f"{name} has {lost} words that end in {last}, {last}: a zero point of 0 was stored less one over those "
            "after it; quantize the model anew, with checkpoint_format gptq_v2"
        )
