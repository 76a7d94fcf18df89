"""Quantized weights as a checkpoint in the compressed-tensors format keeps them: tensors, and what config.json says.

Integers are `pack-quantized`, int8 too: without integer activations it is the only form of them that vLLM and SGLang
read. float8 is `float-quantized`. Source: the package compressed-tensors, 0.20.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F

from .recipe import Recipe
from .weights import Float8Weight, IntegerWeight

WORD_BITS: Final = 32
BLOCK_VALUES: Final = 1 << 20
"""Packed at a time: they are words meanwhile."""


def exported_tensors(linear: str, weight: IntegerWeight | Float8Weight, recipe: Recipe) -> dict[str, torch.Tensor]:
    """The tensors of one linear by name, on the CPU."""
    scales = weight.scales.to(recipe.scale_dtype)
    assert torch.equal(scales.float(), weight.scales), "scales are rounded to what is stored before they are used"
    if isinstance(weight, Float8Weight):
        tensors = {"weight": weight.values, "weight_scale": scales}
    else:
        assert weight.group_of is None
        tensors = {
            "weight_packed": packed(weight.values, weight.bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if recipe.grid is not None and not recipe.grid.symmetric:
            tensors["weight_zero_point"] = packed(weight.zeros.T, weight.bits).T
    return {f"{linear}.{name}": tensor.cpu().contiguous() for name, tensor in tensors.items()}


def packed(values: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [rows, n] -> int32 [rows, ceil(n * bits / 32)], the first value in the lowest bits of the first word."""
    in_word = WORD_BITS // bits
    shifts = bits * torch.arange(in_word, device=values.device, dtype=torch.int32)
    words = []
    for block in torch.split(values, max(1, BLOCK_VALUES // values.shape[1])):
        padded = F.pad(block, (0, -values.shape[1] % in_word))
        words.append((padded.reshape(len(block), -1, in_word).int() << shifts).sum(-1, dtype=torch.int32))
    return torch.cat(words)


def quantization_config(recipe: Recipe, ignored: Sequence[str] = ()) -> dict[str, Any]:
    """What goes to config.json under this name: all linears but the head and the `ignored` modules."""
    kind = "float-quantized" if recipe.grid is None else "pack-quantized"
    weights = {
        "num_bits": 8 if recipe.grid is None else recipe.grid.bits,
        "type": "float" if recipe.grid is None else "int",
        "symmetric": recipe.grid is None or recipe.grid.symmetric,
        "strategy": "channel" if recipe.group_size is None else "group",
        "group_size": recipe.group_size,
        "dynamic": False,
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group | {"format": kind}},
        "ignore": ["lm_head", *ignored],
    }
