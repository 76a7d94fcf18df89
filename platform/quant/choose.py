"""Which scheme stores and multiplies the weights of an unquantized model on this machine, and why."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .kernels.matrix import HAS_MATRIX
from .scheme import LinearMethod
from .stored_float import StoredFloatLinear
from .torch_linear import TorchLinear

CreateLinear = Callable[[int, tuple[int, ...]], LinearMethod]


@dataclass(frozen=True, slots=True)
class Choice:
    create: CreateLinear
    """(in_features, out_features of each part) -> an empty linear group."""
    compute_dtype: torch.dtype
    """Dtype of the activations."""
    reason: str
    """One sentence for doctor and the start-up box."""


def choose_scheme(device: torch.device, storage: torch.dtype) -> Choice:
    """`storage`: how the weights are kept, torch.bfloat16, float16 or float32."""
    name = str(storage).removeprefix("torch.")
    if device.type != "cpu":
        return Choice(
            lambda inputs, outputs: TorchLinear(inputs, outputs, storage, device),
            storage,
            f"{name} weights and arithmetic on {device}",
        )
    reason = f"{name} weights, float32 arithmetic"
    if storage == torch.bfloat16 and HAS_MATRIX:
        reason += " in matrix registers (AMX)"
    return Choice(lambda inputs, outputs: StoredFloatLinear(inputs, outputs, storage), torch.float32, reason)
