"""The CUDA kernels as the launchers have them compiled, for devices that are not here: no spills, wide loads."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex.engine.kernels.cuda import embedding, gate, norm, placeholders
from tests.ahead_of_time import CompileOnly, compile_for, compile_only, resources
from tests.cards import CARDS, ROOMY

TOKENS = 3
HOMES = {"norm": norm, "gate": gate, "gather": embedding}
FLOAT8 = 90
"""The first architecture whose rows are cast."""


def run_norm(size: int, name: str, dtype: torch.dtype = torch.bfloat16) -> None:
    x = torch.empty(TOKENS, size, dtype=dtype)
    getattr(norm, name)(x, torch.empty_like(x), torch.empty(size, dtype=dtype), 1e-5)


def run_gate(size: int, name: str, activation: gate.Activation = "silu") -> None:
    getattr(gate, name)(torch.empty(TOKENS, 2 * size, dtype=torch.bfloat16), activation)


def run_gather(size: int) -> None:
    ids, table = torch.empty(TOKENS, dtype=torch.int32), torch.empty(100, size, dtype=torch.bfloat16)
    embedding.gather_rows(ids, table, torch.bfloat16)


CASES: dict[str, tuple[str, Callable[[], None]]] = {
    "norm 896": ("norm", lambda: run_norm(896, "add_rms_norm")),
    "norm 8192": ("norm", lambda: run_norm(8192, "add_rms_norm")),
    "norm 4096 float32": ("norm", lambda: run_norm(4096, "add_rms_norm", torch.float32)),
    "norm 16384 cast": ("norm", lambda: run_norm(16384, "add_rms_norm_cast")),
    "gate 28672": ("gate", lambda: run_gate(28672, "multiply_gate")),
    "gate 14336 cast": ("gate", lambda: run_gate(14336, "multiply_gate_cast")),
    "gelu 14336 cast": ("gate", lambda: run_gate(14336, "multiply_gate_cast", "gelu_tanh")),
    "embedding 4096": ("gather", lambda: run_gather(4096)),
}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, CompileOnly]:
    return compile_only(monkeypatch, HOMES)


def check_resources(kernel: Any, architecture: int, folder: Path) -> None:
    used = resources(kernel.asm["cubin"], folder)
    assert used["STACK"] == used["LOCAL"] == 0
    assert used["REG"] * 32 * kernel.metadata.num_warps <= 64 * 1024
    assert CARDS[architecture].resident(kernel.metadata.shared) >= (4 if architecture in ROOMY else 3)


@pytest.mark.parametrize(
    ("architecture", "case"),
    [(number, case) for number in CARDS for case in CASES if number >= FLOAT8 or "cast" not in case],
)
def test_no_spills_and_loads_of_16_bytes(
    kernels: dict[str, CompileOnly], architecture: int, case: str, tmp_path: Path
) -> None:
    compile_for(architecture)
    name, run = CASES[case]
    run()
    kernel = kernels[name].compiled[0]
    check_resources(kernel, architecture, tmp_path)
    ptx = kernel.asm["ptx"]
    loads = re.findall(r"ld\.global(?:\.L\w+)*(?:\.v(\d))?\.b(\d+)", ptx)
    wide = [int(count or 1) * int(bits) for count, bits in loads]
    assert wide.count(128) >= 1 and all(width in (128, 32) for width in wide), "16 bytes, or the id of a token"
    assert "st.global.v4.b32" in ptx
    assert ("e4m3x2" in ptx) == ("cast" in case)


@pytest.mark.parametrize("architecture", CARDS)
def test_drawn_tokens_take_their_places_in_a_few_registers(
    architecture: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [kernel] = compile_only(monkeypatch, {"place": placeholders}).values()
    compile_for(architecture)
    for tokens in (1, 16, 33):
        ids = torch.empty(tokens, dtype=torch.int64)
        placeholders.resolve(ids, ids.int(), torch.empty(64, dtype=torch.int32))
    assert len({id(compiled) for compiled in kernel.compiled}) == 1 and kernel.compiled[0].metadata.num_warps == 1
    used = resources(kernel.compiled[0].asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0 and used["REG"] <= 32


def test_the_number_of_tokens_compiles_nothing_anew(
    kernels: dict[str, CompileOnly], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_for(90)
    for tokens in (1, 16, 33):
        monkeypatch.setitem(globals(), "TOKENS", tokens)
        run_norm(4096, "add_rms_norm_cast")
        run_gate(4096, "multiply_gate")
        run_gather(4096)
    for kernel in kernels.values():
        assert len(kernel.compiled) == 3 and len({id(compiled) for compiled in kernel.compiled}) == 1
