"""float8_e4m3fn weights and the scales they are multiplied by: of the tensor, of each output, or by blocks. Also
compressed-tensors' float-quantized. What is called weight_scale_inv is multiplied by all the same.
"""

from collections.abc import Container, Mapping
from typing import Final

import torch

from ..config.layouts import Float8Layout
from ..weights.weights import Float8Inputs, Float8Weight
from .checks import checked_positive, checked_scale, refuse_lost_values, refuse_zero_points
from .specification import FLOATS, Linear, TensorSpec, tensor

NAN: Final = 0x7F
"""Its bits, without the sign."""
INPUT_SCALES: Final = ("input_scale", "activation_scale")
"""What the static scale of inputs may be called: the second is transformers' own."""


def tensors(layout: Float8Layout, linear: Linear, present: Container[str]) -> dict[str, TensorSpec]:
    """`present`: suffixes there are; they tell under which of its names the scale is looked for."""
    rows, columns = layout.block
    linear.groups(columns if rows == 1 else None)
    shapes = [(1,), (), (1, 1)] if layout.block == (None, None) else [tuple(_blocks(linear, layout))]
    scale = next((name for name in layout.scale_names if name in present), layout.scale_names[0])
    static = {_input_scale(present): tensor(FLOATS, (1,), (), (1, 1))} if layout.activations == "static" else {}
    return static | {
        "weight": tensor(["F8_E4M3"], (linear.out_features, linear.in_features)),
        scale: tensor([*FLOATS, "F8_E8M0"], *shapes),
        "weight_zero_point": tensor(["F8_E4M3", "I8", *FLOATS], *shapes, required=False),
    }


def read(layout: Float8Layout, linear: Linear, read_tensors: Mapping[str, torch.Tensor]) -> Float8Weight:
    """ValueError for scales and values that no weight can have."""
    suffix = next(name for name in layout.scale_names if name in read_tensors)
    name = f"{linear.name}.{suffix}"
    values = read_tensors["weight"]
    if int((values.view(torch.uint8) & NAN).max()) == NAN:
        bad = int((values.view(torch.uint8) & NAN == NAN).sum())
        raise ValueError(f"{linear.name}.weight has {bad} of {values.numel()} values that are not a number")
    refuse_zero_points(f"{linear.name}.weight_zero_point", read_tensors.get("weight_zero_point"))
    rows, columns = layout.block
    weight = Float8Weight(
        values=values,
        scales=checked_positive(name, read_tensors[suffix]).reshape(_blocks(linear, layout)).contiguous(),
        block=(rows or linear.out_features, columns or linear.in_features),
        inputs=_inputs(layout, linear, read_tensors),
    )
    return refuse_lost_values(name, weight)


def _inputs(layout: Float8Layout, linear: Linear, read_tensors: Mapping[str, torch.Tensor]) -> Float8Inputs | None:
    match layout.activations:
        case "as they are":
            return None
        case "by token":
            return Float8Inputs()
        case "static":
            suffix = _input_scale(read_tensors)
            return Float8Inputs(checked_scale(f"{linear.name}.{suffix}", read_tensors[suffix]))


def _input_scale(present: Container[str]) -> str:
    return next((name for name in INPUT_SCALES if name in present), INPUT_SCALES[0])


def _blocks(linear: Linear, layout: Float8Layout) -> list[int]:
    sizes = (linear.out_features, linear.in_features)
    return [1 if block is None else -(-size // block) for size, block in zip(sizes, layout.block, strict=True)]
