"""Which scheme stores and multiplies the weights of a model on this machine, and why."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Final

import torch

from ..config.config import QuantizationConfig
from ..linears.cuda_codes import to_codes
from ..linears.cuda_exact import CudaExactLinear
from ..linears.cuda_packed import CudaPackedLinear
from ..linears.cuda_scaled_float8 import CudaScaledFloat8Linear, reads_float8
from ..linears.scaled_products import multiplies_rows
from ..linears.scheme import LinearMethod
from ..linears.torch_linear import TorchLinear
from ..weights.online import OnlineQuantization
from ..weights.weights import CodedWeight, Float8Inputs, Float8Weight
from .selector import SchemeSelector, name_of

FLOAT8_ACTIVATIONS: Final = "float8 linears multiply activations cast to float8"


def choose_scheme(
    device: torch.device, storage: torch.dtype, quantization: QuantizationConfig | None = None
) -> SchemeSelector:
    """`storage`: how float weights are kept, torch.bfloat16, float16 or float32. `quantization`: the checkpoint's."""
    if device.type != "cpu":
        return choose_cuda_scheme(device, storage, quantization)
    from .cpu import choose_cpu_scheme  # compiles for this processor as it is imported

    return choose_cpu_scheme(storage, quantization)


def choose_cuda_scheme(
    device: torch.device,
    storage: torch.dtype,
    quantization: QuantizationConfig | None = None,
    online: OnlineQuantization | None = None,
) -> SchemeSelector:
    """The same for a CUDA device, or a CPU in its place. Activations are of the storage's dtype, and where schemes want
    them in float8 and the device multiplies it, linears cast them."""

    def create(inputs: int, outputs: tuple[int, ...]) -> LinearMethod:
        return TorchLinear(inputs, outputs, storage, device)

    def create_coded(form: Hashable, inputs: int, outputs: tuple[int, ...]) -> LinearMethod:
        if isinstance(form, Float8Inputs):
            return CudaScaledFloat8Linear(inputs, outputs, device, form.scale)
        return CudaPackedLinear(inputs, outputs, storage, device)

    def create_exact(inputs: int, outputs: tuple[int, ...]) -> LinearMethod:
        return CudaExactLinear(inputs, outputs, device)

    wanted = (quantization is not None and quantization.casts_activations) or (
        online is not None and online.casts_activations
    )
    casts = wanted and storage == torch.bfloat16 and multiplies_rows(device)

    def form(weight: CodedWeight) -> Hashable:
        if casts and isinstance(weight, Float8Weight) and reads_float8(weight):
            return weight.inputs
        return packed_form(weight)

    stored = name_of(storage)
    weights = stored if quantization is None else quantization.words
    if storage == torch.float32:
        words = stored if quantization is None else f"{weights}, expanded to {stored}"
        return SchemeSelector(
            create, storage, f"{words} weights, {stored} arithmetic", create, create_exact=create_exact
        )
    reason = f"{weights} weights, {stored} arithmetic"
    activations = FLOAT8_ACTIVATIONS if casts else ""
    if wanted:
        reason += f", {activations or 'no activations cast to float8'}"
    selector = SchemeSelector(create, storage, reason, create, create_coded, form, activations, create_exact)
    # Products of experts read activations as they are.
    return replace(selector, for_experts=replace(selector, form=packed_form, activations=""))


def packed_form(weight: CodedWeight) -> Hashable:
    """CudaPackedLinear stores neighbours of any kinds, but no groups that its kernels do not take."""
    try:
        to_codes(weight)
    except ValueError:
        return None
    return CudaPackedLinear
