"""The CUDA kernels as the launcher has them compiled, for devices that are not here: no spills, loads ahead of use."""

import re
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

from loraplex.lora.kernels.cuda import entry as cuda
from loraplex.lora.kernels.cuda import one_launch
from loraplex.lora.kernels.cuda.tiles import (
    PAGE,
    bound_chunks,
    expand_share,
    intermediate_elements,
    meeting_share,
    shrink_share,
)
from tests.ahead_of_time import CompileOnly, compile_for, compile_only, resources, restore_device
from tests.cards import CARDS, ROOMY

QKV = ((0, 1, 2), (4096, 1024, 1024), 4096)
DOWN = ((6,), (4096,), 14336)
CASES = [
    (80, torch.bfloat16, QKV, 64), (90, torch.bfloat16, QKV, 64), (100, torch.bfloat16, QKV, 64),
    (90, torch.bfloat16, DOWN, 300), (90, torch.float16, DOWN, 64), (90, torch.float32, QKV, 64),
    (86, torch.bfloat16, QKV, 64), (89, torch.bfloat16, DOWN, 300), (120, torch.bfloat16, QKV, 64),
    (80, torch.float32, QKV, 64), (86, torch.float32, DOWN, 64), (120, torch.float32, QKV, 64),
]  # fmt: skip
Group = tuple[tuple[int, ...], tuple[int, ...], int]
"""Indices, out_features and in_features of the linears that are one matrix product."""


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, CompileOnly]:
    return compile_only(monkeypatch, dict.fromkeys(("shrink", "expand"), cuda))


def launch(
    architecture: int, dtype: torch.dtype, group: Group, tokens: int, layer: int = 0,
    y_dtype: torch.dtype | None = None, at_once: bool = False,
) -> None:  # fmt: skip
    kinds, widths, inputs = group
    compile_for(architecture)
    chunks, pages = bound_chunks(tokens, 8), 64
    row = torch.empty(tokens, dtype=torch.int32)
    step = cuda.StepTensors(
        torch.empty(chunks, 3, dtype=torch.int32), row, row.view(torch.float32),
        torch.empty(intermediate_elements(tokens, pages)), torch.empty(PAGE * (inputs + widths[0]), dtype=dtype),
        torch.empty(8, 7, pages, dtype=torch.int64), torch.empty(8, 7, 32, dtype=torch.int32), torch.empty(8, 7, 32),
    )  # fmt: skip
    x, y = torch.empty(tokens, inputs, dtype=dtype), torch.empty(tokens, sum(widths), dtype=y_dtype or dtype)
    if at_once:
        one_launch.add_lora_at_once(y, x, step, torch.empty(2, dtype=torch.int32), chunks, layer, kinds, widths)
    else:
        cuda.add_lora(y, x, step, chunks, layer, kinds, widths)


@pytest.mark.parametrize(
    ("architecture", "dtype", "group", "tokens"), [case for case in CASES if case[1].itemsize == 2], ids=str
)
def test_both_in_one_launch_are_on_the_card_at_once(
    architecture: int, dtype: torch.dtype, group: Group, tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All programs that are launched: else they would wait for ever. Sums are read after all have arrived."""
    [kernel] = compile_only(monkeypatch, {"shrink_and_expand": one_launch}).values()
    launch(architecture, dtype, group, tokens, at_once=True)
    [compiled], card = kernel.compiled, CARDS[architecture]
    used, share = resources(compiled.asm["cubin"], tmp_path), meeting_share(card)
    assert used["STACK"] == used["LOCAL"] == 0
    assert share.programs * used["REG"] * 32 * compiled.metadata.num_warps <= 64 * 1024
    assert card.resident(compiled.metadata.shared) >= share.programs
    before, _, after = compiled.asm["ptx"].partition("atom.global.gpu.acq_rel")
    assert before.count("cp.async.cg") >= 2 and after.count("cp.async.cg") >= 2 and after.count("atom.global") == 2


@pytest.mark.parametrize(("architecture", "dtype", "group", "tokens"), CASES, ids=str)
def test_no_spills_and_loads_ahead_of_their_use(
    kernels: dict[str, CompileOnly], architecture: int, dtype: torch.dtype, group: Group, tokens: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    launch(architecture, dtype, group, tokens)
    shrink, expand = (kernel.compiled[0] for kernel in kernels.values())
    card = CARDS[architecture]
    for kernel, share in ((shrink, shrink_share(card)), (expand, expand_share(dtype.itemsize, card))):
        used = resources(kernel.asm["cubin"], tmp_path)
        assert used["STACK"] == used["LOCAL"] == 0
        assert share.programs * used["REG"] * 32 * kernel.metadata.num_warps <= 64 * 1024
        assert card.resident(kernel.metadata.shared) >= share.programs
        assert share.programs >= (3 if architecture in ROOMY and dtype != torch.float32 else 1)
        assert ("mma.sync" in kernel.asm["ptx"]) == (dtype != torch.float32)
        assert ("griddepcontrol" in kernel.asm["ptx"]) == (architecture >= 90)
        copies = re.findall(r"cp\.async\.cg\.shared\.global .*, 0x10,", kernel.asm["ptx"])
        assert len(copies) >= 2 * (share.stages - 1) and "cp.async.wait_group" in kernel.asm["ptx"], (
            "steps ahead, 16 bytes at a time"
        )
        assert kernel.metadata.launch_pdl == (architecture >= 90)
    if architecture >= 90:
        before, after = shrink.asm["ptx"].split("griddepcontrol.wait", 1)
        assert "prefetch.global.L2" in before and "cp.async.cg" not in before, "A is on its way, x is not"
        assert "launch_dependents" in after and "launch_dependents" not in before, "expand reads y before it waits"
        before_shrink_ends = expand.asm["ptx"].split("griddepcontrol.wait")[0]
        assert before_shrink_ends.count("cp.async.cg") >= 4, "y and B"


FAMILIES: dict[str, Group] = {
    "q, k and v of Qwen2.5 0.5B": ((0, 1, 2), (896, 128, 128), 896), "its down": ((6,), (896,), 4864),
    "down of Qwen2.5 1.5B": ((6,), (1536,), 8960), "of Llama 3.2 1B": ((6,), (2048,), 8192),
    "of Qwen3 4B": ((6,), (2560,), 9728), "of Llama 3.1 8B": ((6,), (4096,), 14336), "of 70B": ((6,), (8192,), 28672),
    "gate and up of Qwen2.5 7B": ((4, 5), (18944, 18944), 3584),
    "q, k and v of Gemma 2 2B": ((0, 1, 2), (2048, 1024, 1024), 2304),
}  # fmt: skip


NEAREST = [(architecture, dtype) for architecture in CARDS for dtype in (torch.bfloat16, torch.float16)]
"""(80, torch.bfloat16) before all others."""


@pytest.mark.parametrize(("architecture", "dtype"), NEAREST, ids=str)
def test_decodes_of_no_family_of_models_spill(
    kernels: dict[str, CompileOnly], architecture: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    """On sm_80 in bfloat16 all of them; elsewhere it is the two that took most registers and one of the others."""
    place = NEAREST.index((architecture, dtype))
    chosen = [*FAMILIES][place : place + 1] + [*FAMILIES][-2:] if place else [*FAMILIES]
    for name, group in ((name, FAMILIES[name]) for name in chosen):
        launch(architecture, dtype, group, 64)
        shares = ("shrink", shrink_share(CARDS[architecture])), ("expand", expand_share(2, CARDS[architecture]))
        for kernel, share in shares:
            used = resources(kernels[kernel].compiled.pop().asm["cubin"], tmp_path)
            assert used["STACK"] == used["LOCAL"] == 0 and used["REG"] <= share.registers, (name, kernel, used)


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [(80, torch.bfloat16), (90, torch.bfloat16), (90, torch.float16), (120, torch.bfloat16)],
    ids=str,
)
@pytest.mark.parametrize(("vocabulary", "size"), [(151936, 896)])
def test_adapters_of_the_head_spill_nothing(
    kernels: dict[str, CompileOnly], vocabulary: int, size: int, architecture: int, dtype: torch.dtype, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(cuda, "shrink", MagicMock())
    launch(architecture, dtype, ((7,), (vocabulary,), size), 64, y_dtype=torch.float32)
    used = resources(kernels["expand"].compiled[0].asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0 and used["REG"] <= expand_share(2, CARDS[architecture]).registers


@pytest.mark.parametrize(
    ("architecture", "dtype"), [(80, torch.bfloat16), (90, torch.float32), (100, torch.bfloat16)], ids=str
)
def test_gains_and_shifts_spill_nothing_and_are_one_kernel_for_all_steps(
    architecture: int, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore_device(monkeypatch)
    compile_for(architecture)
    scale = CompileOnly(cuda.scale)
    monkeypatch.setattr(cuda, "scale", scale)
    (kinds, widths, _), floats = QKV, torch.empty(64)
    for tokens, layer in ((1, 0), (16, 1), (7, 31)):
        row = torch.empty(tokens, dtype=torch.int32)
        lists = (torch.empty(8, 3, dtype=torch.int32), row, row.view(torch.float32), *[floats] * 5)
        y, vectors = torch.empty(tokens, sum(widths), dtype=dtype), torch.empty(8, 14, dtype=torch.int64)
        cuda.scale_outputs(y, cuda.StepTensors(*lists), floats, vectors, 8, layer, kinds, widths)
    kernel, *others = scale.compiled
    assert len(others) == 2 and all(other is kernel for other in others)
    used = resources(kernel.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0 and used["REG"] <= 128
    assert kernel.metadata.shared <= CARDS[architecture].shared_memory // 4
    assert "ld.global.v" in kernel.asm["ptx"] and "st.global.v" in kernel.asm["ptx"]


def test_neither_the_layer_nor_the_number_of_tokens_compiles_anew(kernels: dict[str, CompileOnly]) -> None:
    for tokens, layer in ((1, 0), (16, 1), (256, 16), (7, 31)):
        launch(80, torch.bfloat16, QKV, tokens, layer)
    for kernel in kernels.values():
        assert len(kernel.compiled) == 4 and len({id(compiled) for compiled in kernel.compiled}) == 1
