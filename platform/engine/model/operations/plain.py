"""Operations by torch alone, on any device."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from ..description.spec import Activation

ACTIVATIONS: Final[Mapping[Activation, Callable[[Tensor], Tensor]]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
}


def activate(x: Tensor, activation: Activation) -> Tensor:
    """In float32, rounded to x's dtype."""
    return ACTIVATIONS[activation](x.float()).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """x [T, C], weight and bias [C] -> [T, C] in x's dtype, computed in float32."""
    return F.layer_norm(x.float(), weight.shape, weight.float(), bias.float(), eps).to(x.dtype)
