"""CUDA kernels compiled for devices that are not here. Triton's cache keeps them: it goes by sources and options."""

import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from loraplex.quant.kernels.cuda import card
from tests.cards import CARDS

MATRIX_UNITS = dict.fromkeys(CARDS, "mma.sync") | {90: "wgmma.mma_async", 100: "tcgen05.mma"}


class AbsentDevice(NamedTuple):
    """What triton asks of a driver before it compiles."""

    architecture: int

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, 32)

    def get_current_device(self) -> int:
        return self.architecture

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_for(architecture: int) -> None:
    """Launches are now those for a card of that architecture, in a test that has called `restore_device`."""
    driver.set_active(AbsentDevice(architecture))
    setattr(card, "INTERPRETER", CARDS[architecture])  # noqa: B010


def restore_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the test."""
    monkeypatch.setattr(driver, "_active", None)
    monkeypatch.setattr(card, "INTERPRETER", card.INTERPRETER)


class CompileOnly:
    """A kernel that is compiled where it would be launched, and starts there: it takes no more shared memory than a
    program may have."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.compiled = kernel, []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def compile_it(*arguments: Any, **named: Any) -> None:
            compiled = self.kernel.warmup(*arguments, grid=grid, **named)
            assert compiled.metadata.shared <= CARDS[compiled.metadata.target.arch].shared_memory
            self.compiled.append(compiled)

        return compile_it


def compile_only(monkeypatch: pytest.MonkeyPatch, homes: Mapping[str, Any]) -> dict[str, CompileOnly]:
    """Kernels by name, each in the module that launches it, where it is compiled alone until the test ends."""
    restore_device(monkeypatch)
    kernels = {name: CompileOnly(getattr(home, name)) for name, home in homes.items()}
    for name, kernel in kernels.items():
        monkeypatch.setattr(homes[name], name, kernel)
    return kernels


def resources(binary: bytes, folder: Path) -> dict[str, int]:
    """Registers, and bytes of stack and local memory (where registers spill to), of the machine code."""
    file = folder / "kernel.cubin"
    file.write_bytes(binary)
    command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
