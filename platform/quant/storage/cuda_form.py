"""How the linears of a CUDA device are stored: those that are rounded or packed as they are loaded."""

import sys
from functools import cached_property
from typing import Final

import torch

from ..linears.cuda_packed import CudaPackedLinear
from ..linears.cuda_scaled_float8 import CudaScaledFloat8Linear
from ..linears.packed import Fill, Packable, PackedForm
from ..linears.scaled_input import ScaledInputLinear
from ..linears.side_by_side import SideBySideLinear
from ..weights.online import OnlineQuantization

METHODS: Final[tuple[type[Packable], ...]] = (CudaPackedLinear, SideBySideLinear, ScaledInputLinear)
STAGED_BYTES: Final = 32 << 20
"""Of an array that are on the host at a time."""


def cuda_form(device: torch.device, online: OnlineQuantization, activations: str) -> PackedForm:
    """`activations`: of the SchemeSelector, as it decides which linears read float8."""
    rounded = online.casts_activations  # else float8 is served as the checkpoint has it: a copy would only take disk
    methods = (*METHODS, CudaScaledFloat8Linear) if rounded else METHODS
    return PackedForm(f"cuda {sys.byteorder} {activations}", methods, OnDevice(device))


class OnDevice:
    """Land, through a buffer of pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @cached_property
    def _staging(self) -> torch.Tensor:
        return torch.empty(STAGED_BYTES, dtype=torch.uint8, pin_memory=self._device.type == "cuda")

    def __call__(self, dtype: torch.dtype, shape: list[int], fill: Fill) -> torch.Tensor:
        array = torch.empty(shape, dtype=dtype, device=self._device)
        for room in torch.split(array.view(-1).view(torch.uint8), STAGED_BYTES):
            staged = self._staging[: len(room)]
            fill(staged.numpy().data)
            room.copy_(staged)  # waits until it is there, in a small part of the time that a disk takes
        return array
