"""How the linears of a CPU are stored: all of them, packed for this processor."""

import sys
from typing import Final

import numpy as np
import torch

from ..kernels.instructions.tile import PANEL
from ..kernels.instructions.vectors import features
from ..kernels.layouts.panels import aligned
from ..linears.coded import CodedLinear
from ..linears.dequantized import DequantizedLinear
from ..linears.packed import Fill, Packable, PackedForm
from ..linears.scaled_input import ScaledInputLinear
from ..linears.side_by_side import SideBySideLinear
from ..linears.stored_float import StoredFloatLinear
from ..schemes.arithmetic import ARITHMETIC

METHODS: Final[tuple[type[Packable], ...]] = (
    StoredFloatLinear,
    CodedLinear,
    SideBySideLinear,
    ScaledInputLinear,
    DequantizedLinear,
)


def cpu_form() -> PackedForm:
    return PackedForm(f"{features} {ARITHMETIC} {PANEL} {sys.byteorder}", METHODS, on_host)


def on_host(dtype: torch.dtype, shape: list[int], fill: Fill) -> torch.Tensor:
    """As Land."""
    array = aligned(torch.Size(shape).numel() * dtype.itemsize, np.uint8)
    fill(array.data)
    return torch.from_numpy(array).view(dtype).view(shape)
