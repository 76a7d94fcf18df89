"""The CUDA kernels compiled ahead of time, for devices that are not here: no spills, loads ahead of their use."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from loraplex.lora.kernels.cuda import plan_launches
from loraplex.lora.kernels.expand import expand
from loraplex.lora.kernels.shrink import shrink
from loraplex.lora.kernels.tiles import count_split_inputs

SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes that one program may use."""
FIXED = {
    "h": "*fp32", "chunks": "*i32", "tokens": "*i32", "scales": "*fp32", "offset": "*i64", "rank": "*i32",
    "scaling": "*fp32", "layer": "i32",
}  # fmt: skip
KERNELS = {"shrink": shrink, "expand": expand}
GROUPS = {"qkv": ((0, 1, 2), (4096, 1024, 1024), 4096), "down": ((6,), (4096,), 14336)}
CASES = [
    (80, "bf16", "qkv", 64), (90, "bf16", "qkv", 64), (100, "bf16", "qkv", 64), (90, "bf16", "down", 4096),
    (90, "fp16", "down", 64), (90, "fp32", "qkv", 64),
]  # fmt: skip
"""Architecture, dtype of weights and activations, linear group, tokens of the step."""


def compile_kernel(name: str, architecture: int, dtype: str, group: str, tokens: int) -> Any:
    """As the launcher has it compiled: tensors begin at multiples of 16 bytes, all sizes are known."""
    kernel, (kinds, widths, inputs), item_size = KERNELS[name], GROUPS[group], 4 if dtype == "fp32" else 2
    split = count_split_inputs(inputs, tokens, item_size)
    launches = plan_launches(kinds, widths, inputs, split, item_size, (7, 64, 32), architecture >= 90)
    given = getattr(launches, name)
    signature = {name: "constexpr" if name in given else FIXED.get(name, f"*{dtype}") for name in kernel.arg_names}
    pointers = [index for index, kind in enumerate(signature.values()) if kind.startswith("*")]
    source = ASTSource(
        kernel,
        signature,
        {name: value for name, value in given.items() if name in signature},
        {(index,): [["tt.divisibility", 16]] for index in pointers},
    )
    options = {name: value for name, value in given.items() if name not in signature}
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def resources(binary: bytes, folder: Path) -> dict[str, int]:
    """Registers, and bytes of stack and local memory (where registers spill to), of the machine code."""
    file = folder / "kernel.cubin"
    file.write_bytes(binary)
    command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("architecture", "dtype", "group", "tokens"), CASES)
def test_no_spills_and_loads_ahead_of_their_use(
    name: str, architecture: int, dtype: str, group: str, tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiled = compile_kernel(name, architecture, dtype, group, tokens)
    used = resources(compiled.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0
    assert 0 < used["REG"] <= 168
    assert compiled.metadata.shared <= SHARED_MEMORY[architecture] // 4
    code = compiled.asm["ptx"]
    assert ("mma.sync" in code) == (dtype != "fp32")
    assert ("griddepcontrol" in code) == (architecture >= 90)
    if name == "shrink":
        copies = re.findall(r"cp\.async\.cg\.shared\.global .*, 0x10,", code)
        assert len(copies) >= 8 and "cp.async.wait_group" in code, "three steps ahead, 16 bytes at a time"
    elif architecture >= 90:
        before_shrink_ends = code[: code.index("griddepcontrol.wait")]
        assert before_shrink_ends.count("ld.global.v4") >= 4, "y and the first ranks of B"
