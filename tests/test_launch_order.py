"""Where kernels are chained, none reads what the one before writes ahead of its wait: neither triton's pipelines nor
the assembler has moved such a read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex.engine.attention.kernels.cuda import launch as attention
from loraplex.engine.kernels.cuda import gate, norm
from loraplex.lora.kernels.cuda import entry as lora
from loraplex.quant.kernels.cuda import linear
from loraplex.quant.kernels.cuda.layout import FLOAT8, INTEGER4
from tests.ahead_of_time import CompileOnly, compile_for, restore_device
from tests.engine.attention.test_triton_compiles import BF16, DECODE, E4M3, HEADS, KV_HEADS, LONG, attend, empty_layer
from tests.engine.kernels.test_triton_compiles import run_gate, run_norm
from tests.launch_order import PTX, early_reads, reads_of, unwaited
from tests.lora.kernels.test_triton_compiles import DOWN, QKV
from tests.lora.kernels.test_triton_compiles import launch as add_lora
from tests.quant.kernels.test_triton_compiles import launch as multiply

CHAINED = (90, 100, 120)
KEYS = ("query", "key", "value")


def rotate(dtype: torch.dtype) -> None:
    table, place = torch.empty(4096, 64), torch.empty(64, dtype=torch.int64)
    query, heads = (torch.empty(64, count, 128, dtype=BF16) for count in (HEADS, HEADS + 2 * KV_HEADS))
    attention.write_heads(query, heads, empty_layer(dtype, 128), attention.Turn(table, table), place, place, None)


Case = tuple[Callable[[int], Any], Any, str, tuple[str, ...]]
"""What launches it, its home, its name, and what the kernels before it write."""
CASES: dict[str, Case] = {
    "shrink": (lambda number: add_lora(number, BF16, QKV, 64), lora, "shrink", ("x",)),
    "shrink of long prompts": (lambda number: add_lora(number, BF16, DOWN, 300), lora, "shrink", ("x",)),
    "expand": (lambda number: add_lora(number, BF16, QKV, 64), lora, "expand", ("h",)),
    "expand of float32": (lambda number: add_lora(number, torch.float32, DOWN, 64), lora, "expand", ("h",)),
    "W4A16 of one row": (lambda number: multiply(number, INTEGER4, 1, False), linear, "multiply", ("x", "parts")),
    "W4A16 of many rows": (lambda number: multiply(number, INTEGER4, 64, False), linear, "multiply", ("x",)),
    "W8A16": (lambda number: multiply(number, FLOAT8, 16), linear, "multiply", ("x",)),
    "decode": (lambda number: attend(BF16, 128, *DECODE), attention, "attend", KEYS),
    "decode of 8 bits": (lambda number: attend(E4M3, 128, *DECODE), attention, "attend", (*KEYS, "scales")),
    "prefill": (lambda number: attend(BF16, 128, *LONG), attention, "attend", KEYS),
    "parts of a decode": (lambda number: attend(BF16, 128, 1, 1), attention, "attend", (*KEYS, "sums", "states")),
    "rope and write": (lambda number: rotate(BF16), attention, "rotate_and_write", ("heads",)),
    "norm": (lambda number: run_norm(4096, "add_rms_norm"), norm, "norm", ("x", "residual")),
    "gate": (lambda number: run_gate(14336, "multiply_gate"), gate, "gate", ("gate_up",)),
}
LAUNCHED = {lora: ("shrink", "expand"), linear: ("multiply",), norm: ("norm",), gate: ("gate",)}
LAUNCHED |= {attention: ("attend", "rotate_and_write")}


def compile_case(name: str, architecture: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    launch, home, kernel, _ = CASES[name]
    restore_device(monkeypatch)
    compile_for(architecture)
    kernels = {each: CompileOnly(getattr(home, each)) for each in LAUNCHED[home]}
    for each, only in kernels.items():
        monkeypatch.setattr(home, each, only)
    launch(architecture)
    return kernels[kernel].compiled[0]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("architecture", CHAINED)
def test_nothing_is_read_before_it_is_written(
    architecture: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = compile_case(name, architecture, monkeypatch)
    assert kernel.metadata.launch_pdl
    assert early_reads(kernel, CASES[name][3], tmp_path) == []


def test_a_read_ahead_of_the_wait_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In both machine codes: expand reads y before shrink ends, which has waited by then for all that wrote it."""
    kernel = compile_case("expand", 90, monkeypatch)
    early = early_reads(kernel, ("y",), tmp_path)
    assert any(line.startswith("cp.async") for line in early) and any("LDGSTS" in line for line in early)
    early = early_reads(kernel, ("rank", "offset"), tmp_path)
    assert any("ld.global" in line for line in early) and any("LDG." in line for line in early)


@pytest.mark.parametrize("name", ["expand", "decode", "W4A16 of one row"])
def test_each_wait_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a read is early."""
    kernel = compile_case(name, 90, monkeypatch)
    lines = [line.replace(PTX.wait, "") for line in kernel.asm["ptx"].splitlines()]
    parameters = [each for each, kind in kernel.src.signature.items() if kind != "constexpr"]
    reads = reads_of(lines, {parameters.index(each) for each in CASES[name][3]})
    assert {*unwaited([line + "//marked" if line in reads else line for line in lines], PTX, "//marked")}


@pytest.mark.parametrize("name", ["shrink", "expand"])
def test_the_wait_that_is_text_forbids_the_compiler_to_move_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = compile_case(name, 90, monkeypatch).asm["llir"]
    waits = [line for line in code.splitlines() if "griddepcontrol.wait" in line]
    assert waits and all("~{memory}" in line for line in waits)
