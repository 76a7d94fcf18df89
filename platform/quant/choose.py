"""Which scheme stores and multiplies the weights of a model on this machine, and why."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from .dequantized import DequantizedLinear
from .kernels.matrix import HAS_MATRIX
from .scheme import LinearMethod
from .side_by_side import SideBySideLinear
from .stored_float import StoredFloatLinear
from .torch_linear import TorchLinear
from .weights import IntegerWeight, Weight

CreateLinear = Callable[[int, tuple[int, ...]], LinearMethod]


def create_float32(in_features: int, out_features: tuple[int, ...]) -> LinearMethod:
    return StoredFloatLinear(in_features, out_features, torch.float32)


@dataclass(frozen=True, slots=True)
class Choice:
    create: CreateLinear
    """(in_features, out_features of each part) -> an empty linear group for float weights."""
    compute_dtype: torch.dtype
    """Dtype of the activations."""
    reason: str
    """One sentence for doctor and the start-up box."""
    create_dequantized: CreateLinear = create_float32
    """The same for what quantized weights stand for, in the compute dtype."""

    def create_for(self, weights: Sequence[Weight]) -> LinearMethod:
        """An empty linear group for these parts [out, in], in whatever forms they are."""
        runs = [tuple(run) for _, run in groupby(weights, form_of)]
        methods = [self._create_alike(run) for run in runs]
        return methods[0] if len(methods) == 1 else SideBySideLinear(methods)

    def _create_alike(self, weights: tuple[Weight, ...]) -> LinearMethod:
        inputs, outputs = weights[0].shape[1], tuple(weight.shape[0] for weight in weights)
        if isinstance(weights[0], torch.Tensor):
            return self.create(inputs, outputs)
        return DequantizedLinear(self.create_dequantized(inputs, outputs), self.compute_dtype)


def form_of(weight: Weight) -> Hashable:
    """Equal for weights that one method can store together."""
    if isinstance(weight, torch.Tensor):
        return "float"
    if isinstance(weight, IntegerWeight):
        return "integer", weight.bits, weight.scales.shape[1], weight.group_of is not None
    whole = [None if size >= own else size for size, own in zip(weight.block, weight.shape, strict=True)]
    return "float8", *whole


def choose_scheme(device: torch.device, storage: torch.dtype, quantization: str | None = None) -> Choice:
    """`storage`: how float weights are kept, torch.bfloat16, float16 or float32. `quantization`: how the checkpoint has
    its weights, in words; None for floats."""
    stored = str(storage).removeprefix("torch.")
    if device.type != "cpu":

        def create(inputs: int, outputs: tuple[int, ...]) -> LinearMethod:
            return TorchLinear(inputs, outputs, storage, device)

        weights = stored if quantization is None else f"{quantization}, expanded to {stored}"
        return Choice(create, storage, f"{weights} weights and arithmetic on {device}", create)
    weights = stored if quantization is None else f"{quantization}, expanded to float32"
    reason = f"{weights} weights, float32 arithmetic"
    if storage == torch.bfloat16 and HAS_MATRIX and quantization is None:
        reason += " in matrix registers (AMX)"
    return Choice(lambda inputs, outputs: StoredFloatLinear(inputs, outputs, storage), torch.float32, reason)
