"""Operations by torch alone, on any device."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from ..description.spec import Activation

SWIGLU_ALPHA: Final = 1.702
SWIGLU_LIMIT: Final = 7.0
"""Of clamped_swiglu."""
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


def multiply_gate(gate_up: Tensor, activation: Activation) -> Tensor:
    """gate_up [T, 2 I], gate first -> [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    if activation != "clamped_swiglu":
        return activate(gate, activation) * up
    gate, up = gate.float().clamp(max=SWIGLU_LIMIT), up.float().clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
    return ((up + 1) * (gate * torch.sigmoid(SWIGLU_ALPHA * gate))).to(gate_up.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """x [T, C], weight and bias [C] -> [T, C] in x's dtype, computed in float32."""
    return F.layer_norm(x.float(), weight.shape, weight.float(), bias.float(), eps).to(x.dtype)


def gate(x: Tensor, gates: Tensor) -> Tensor:
    """x * sigmoid(gates) in their dtype."""
    return x * torch.sigmoid(gates)
