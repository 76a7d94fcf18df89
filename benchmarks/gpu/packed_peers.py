"""Others' products of 16-bit rows and weights of 4 bits, over the same codes as ours: gemlite's, where it is installed,
and torch's own."""

import copy
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Final

import torch

from loraplex.quant.weights.weights import IntegerWeight

from .figure import TOLERANCE, Stage, Unsupported, WrongResult, require_close

Product = Callable[[torch.Tensor], torch.Tensor]
INNER_TILES: Final = 8
"""Of 16 inputs, that lie together in torch's layout."""


def make_gemlite(stage: Stage, weight: IntegerWeight) -> list[Product]:
    """One for each copy of the weight. Raises Unsupported."""
    try:
        helper: Any = import_module("gemlite.helper")
    except ImportError as error:
        raise Unsupported(f"gemlite cannot be imported: {error}") from None
    made = helper.A16Wn(device=stage.device, dtype=stage.size.dtype).from_weights(
        weight.values, weight.scales, weight.zeros, W_nbits=4, group_size=group_of(weight)
    )
    copies = range(stage.copies(weight.values.numel() // 2) - 1)
    return [made, *(copy.deepcopy(made) for _ in copies)]


def make_torch(stage: Stage, weight: IntegerWeight) -> list[Product]:
    """As `make_gemlite`. Its weights are (code - 8) * scale + shift."""
    values = weight.values.to(stage.device)
    if stage.device.type == "cuda":
        codes = torch._convert_weight_to_int4pack(values[:, ::2] << 4 | values[:, 1::2], INNER_TILES)
        product: Callable[..., torch.Tensor] = torch._weight_int4pack_mm
    else:
        codes = torch._convert_weight_to_int4pack_for_cpu(values.int(), INNER_TILES)
        product = torch._weight_int4pack_mm_for_cpu
    shifts = (8 - weight.zeros.float()) * weight.scales
    scales = torch.stack([weight.scales, shifts], 2).transpose(0, 1).contiguous().to(stage.device, stage.size.dtype)

    def multiply(codes: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return product(x, codes, group_of(weight), scales)

    return [partial(multiply, codes.clone()) for _ in range(stage.copies(codes.nbytes))]


PEERS: Final = {"gemlite": make_gemlite, "torch's _weight_int4pack_mm": make_torch}


def checked_peer(
    stage: Stage, name: str, weight: IntegerWeight, x: torch.Tensor, wanted: torch.Tensor
) -> list[Product]:
    """Products that give about `wanted` of x. Raises Unsupported: that a peer fails is no fault of ours."""
    try:
        products = PEERS[name](stage, weight)
        require_close(products[0](x), wanted, TOLERANCE)
    except Unsupported:
        raise
    except WrongResult as error:
        raise Unsupported(f"{name} gives something else: {error}") from None
    except Exception as error:  # whatever its compiler or its checks raise
        words = str(error).strip().partition("\n")[0]
        raise Unsupported(f"{name} fails here: {type(error).__name__}: {words}") from None
    return products


def group_of(weight: IntegerWeight) -> int:
    """Inputs of one group."""
    return weight.values.shape[1] // weight.scales.shape[1]
