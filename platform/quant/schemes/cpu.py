"""How weights are stored and multiplied on a CPU: by kernels that numba compiles for it."""

import torch

from ..config.config import QuantizationConfig
from ..config.layouts import Float8Layout, Mxfp4Layout
from ..kernels.instructions.dots import DESCRIPTION, HAS_BFLOAT16, HAS_INTEGERS
from ..linears.code_kernels import VECTORS
from ..linears.coded import CodedLinear, coded_form
from ..linears.stored_float import StoredFloatLinear
from .selector import SchemeSelector, name_of


def choose_cpu_scheme(storage: torch.dtype, quantization: QuantizationConfig | None = None) -> SchemeSelector:
    """Arguments as of choose_scheme."""
    stored = name_of(storage)
    reason = f"{stored if quantization is None else quantization.words} weights, float32 arithmetic"
    by_dots = _linears_by_dots(storage, quantization)
    reason += f", {by_dots} by {DESCRIPTION}" if by_dots else ""
    if storage == torch.float16 and HAS_BFLOAT16:
        reason += ", many rows faster here with --dtype bfloat16"
    if quantization is not None and any(
        (layout.group_size or 0) % VECTORS.step for layout in quantization.linears.layouts
    ):
        reason += f", groups of no multiple of {VECTORS.step} inputs expanded to float32"
    return SchemeSelector(
        lambda inputs, outputs: StoredFloatLinear(inputs, outputs, storage),
        torch.float32,
        reason,
        create_coded=lambda form, inputs, outputs: CodedLinear(inputs, outputs, exact=storage != torch.bfloat16),
        form=coded_form,
    )


def _linears_by_dots(storage: torch.dtype, quantization: QuantizationConfig | None) -> str:
    """Which linears are multiplied by dot products of short numbers here, as `code_kernels.py` chooses."""
    if HAS_BFLOAT16 and storage == torch.bfloat16:
        return "linears of bfloat16 activations"
    if quantization is None:
        return ""
    if HAS_BFLOAT16:
        return "linears"
    integers = not all(isinstance(layout, Float8Layout | Mxfp4Layout) for layout in quantization.linears.layouts)
    return "linears of 4- and 8-bit integers" if HAS_INTEGERS and integers else ""
