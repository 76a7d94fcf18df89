"""CUDA kernels compiled for devices that are not here. Triton's cache keeps them: it goes by sources and options."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget

SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes that the programs of one multiprocessor share."""


class AbsentDevice(NamedTuple):
    """What triton asks of a driver before it compiles."""

    architecture: int

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, 32)

    def get_current_device(self) -> int:
        return self.architecture

    def get_current_stream(self, device: int) -> int:
        return 0


class CompileOnly:
    """A kernel that is compiled where it would be launched."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.compiled = kernel, []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments, **named: self.compiled.append(self.kernel.warmup(*arguments, grid=grid, **named))


def resources(binary: bytes, folder: Path) -> dict[str, int]:
    """Registers, and bytes of stack and local memory (where registers spill to), of the machine code."""
    file = folder / "kernel.cubin"
    file.write_bytes(binary)
    command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
