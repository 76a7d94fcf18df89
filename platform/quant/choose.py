"""Which scheme stores and multiplies the weights of a model on this machine, and why."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import torch

from .config import QuantizationConfig
from .cuda_codes import to_codes
from .cuda_packed import CudaPackedLinear
from .cuda_scaled_float8 import CudaScaledFloat8Linear, reads_float8
from .dequantized import DequantizedLinear
from .online import OnlineQuantization
from .scaled_products import multiplies_rows
from .scheme import LinearMethod
from .side_by_side import SideBySideLinear
from .torch_linear import TorchLinear
from .weights import Float8Inputs, Float8Weight, IntegerWeight, Weight

CreateLinear = Callable[[int, tuple[int, ...]], LinearMethod]
CreateCoded = Callable[[Hashable, int, tuple[int, ...]], LinearMethod]
FLOAT8_ACTIVATIONS: Final = "float8 linears multiply activations cast to float8"


def create_float32(in_features: int, out_features: tuple[int, ...]) -> LinearMethod:
    from .stored_float import StoredFloatLinear

    return StoredFloatLinear(in_features, out_features, torch.float32)


def expand_all(weight: IntegerWeight | Float8Weight) -> Hashable:
    """Choice.form where no kernel takes codes."""
    return None


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
    create_coded: CreateCoded | None = None
    """The same for quantized weights of one `form`, which comes first; None: all of them are expanded."""
    form: Callable[[IntegerWeight | Float8Weight], Hashable] = expand_all
    """Equal for quantized weights that one method can store together; None for those that no kernel takes."""
    activations: str = ""
    """In words what linears do to activations beyond rounding them to `compute_dtype`; empty: nothing."""

    def create_for(self, weights: Sequence[Weight]) -> LinearMethod:
        """An empty linear group for these parts [out, in], in whatever forms they are."""
        runs = [(form, tuple(run)) for form, run in groupby(weights, self._form)]
        methods = [self._create_alike(form, run) for form, run in runs]
        return methods[0] if len(methods) == 1 else SideBySideLinear(methods)

    def _form(self, weight: Weight) -> Hashable:
        """Equal for weights that one method can store together; None for those that are expanded."""
        if isinstance(weight, torch.Tensor):
            return torch.Tensor
        return None if self.create_coded is None else self.form(weight)

    def _create_alike(self, form: Hashable, weights: tuple[Weight, ...]) -> LinearMethod:
        inputs, outputs = weights[0].shape[1], tuple(weight.shape[0] for weight in weights)
        if form is torch.Tensor:
            return self.create(inputs, outputs)
        if form is None or self.create_coded is None:
            return DequantizedLinear(self.create_dequantized(inputs, outputs), self.compute_dtype)
        return self.create_coded(form, inputs, outputs)


def choose_scheme(device: torch.device, storage: torch.dtype, quantization: QuantizationConfig | None = None) -> Choice:
    """`storage`: how float weights are kept, torch.bfloat16, float16 or float32. `quantization`: the checkpoint's."""
    if device.type != "cpu":
        return choose_cuda_scheme(device, storage, quantization)
    from .cpu_scheme import choose_cpu_scheme

    return choose_cpu_scheme(storage, quantization)


def choose_cuda_scheme(
    device: torch.device,
    storage: torch.dtype,
    quantization: QuantizationConfig | None = None,
    online: OnlineQuantization | None = None,
) -> Choice:
    """The same for a CUDA device, or a CPU in its place. Activations are of the storage's dtype, and where schemes want
    them in float8 and the device multiplies it, linears cast them."""

    def create(inputs: int, outputs: tuple[int, ...]) -> LinearMethod:
        return TorchLinear(inputs, outputs, storage, device)

    def create_coded(form: Hashable, inputs: int, outputs: tuple[int, ...]) -> LinearMethod:
        if isinstance(form, Float8Inputs):
            return CudaScaledFloat8Linear(inputs, outputs, device, form.scale)
        return CudaPackedLinear(inputs, outputs, storage, device)

    wanted = (quantization is not None and quantization.casts_activations) or (
        online is not None and online.casts_activations
    )
    casts = wanted and storage == torch.bfloat16 and multiplies_rows(device)

    def form(weight: IntegerWeight | Float8Weight) -> Hashable:
        if casts and isinstance(weight, Float8Weight) and reads_float8(weight):
            return weight.inputs
        return packed_form(weight)

    stored = name_of(storage)
    weights = stored if quantization is None else quantization.words
    if storage == torch.float32:
        words = stored if quantization is None else f"{weights}, expanded to {stored}"
        return Choice(create, storage, f"{words} weights, {stored} arithmetic", create)
    reason = f"{weights} weights, {stored} arithmetic"
    activations = FLOAT8_ACTIVATIONS if casts else ""
    if wanted:
        reason += f", {activations or 'no activations cast to float8'}"
    return Choice(create, storage, reason, create, create_coded, form, activations)


def packed_form(weight: IntegerWeight | Float8Weight) -> Hashable:
    """CudaPackedLinear stores neighbours of any kinds, but no groups that its kernels do not take."""
    try:
        to_codes(weight)
    except ValueError:
        return None
    return CudaPackedLinear


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
