"""Which scheme stores and multiplies the weights of an unquantized model on this machine, and why."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .cpu_features import cpu_features, has_bfloat16
from .packed_bfloat16 import PackedBfloat16Linear
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


def choose_scheme(device: torch.device, storage: torch.dtype, features: frozenset[str] | None = None) -> Choice:
    """`storage`: how the weights are kept, torch.bfloat16, float16 or float32. `features`: None asks this CPU."""
    name = str(storage).removeprefix("torch.")
    if device.type != "cpu":
        return Choice(
            lambda inputs, outputs: TorchLinear(inputs, outputs, storage, device),
            storage,
            f"{name} weights and arithmetic on {device}",
        )
    features = cpu_features() if features is None else features
    if storage == torch.bfloat16 and has_bfloat16(features):
        return Choice(
            PackedBfloat16Linear, torch.bfloat16, "bfloat16 weights and arithmetic: this CPU has bfloat16 instructions"
        )
    reason = f"{name} weights, float32 arithmetic"
    if storage == torch.bfloat16:
        reason += ": this CPU has no bfloat16 instructions"
    return Choice(lambda inputs, outputs: StoredFloatLinear(inputs, outputs, storage), torch.float32, reason)
