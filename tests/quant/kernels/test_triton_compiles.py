"""The CUDA kernels as the launchers have them compiled, for devices that are not here: no spills, loads ahead."""

import re
from pathlib import Path

import pytest
import torch

from loraplex.quant.kernels.cuda import cast, linear
from loraplex.quant.kernels.cuda.layout import FLOAT8, INTEGER4, INTEGER8, PackedWeight
from loraplex.quant.kernels.cuda.tiles import DENSE_ROWS, FEW, LEAST, MANY, PANEL, choose_run, choose_tile
from tests.ahead_of_time import MATRIX_UNITS, CompileOnly, compile_for, compile_only, resources
from tests.cards import CARDS

DOWN = (4096, 14336)
"""Outputs and inputs of a linear of Llama 3.1 8B."""
GROUP = 128
FORMATS = {INTEGER4: GROUP, INTEGER8: None, FLOAT8: GROUP}
"""Inputs of a group; None: one scale an output."""
CASES = [(architecture, INTEGER4, tile.rows, False) for architecture in CARDS for tile in (LEAST, FEW, MANY)]
CASES += [(80, INTEGER4, MANY.rows, True), (90, INTEGER4, MANY.rows - 1, True)]
CASES += [(architecture, code, FEW.rows, True) for architecture in CARDS for code in (INTEGER8, FLOAT8)]
CASES += [(90, INTEGER8, 1, False), (100, FLOAT8, LEAST.rows, True)]
CASES += [(80, INTEGER8, MANY.rows, True), (90, FLOAT8, MANY.rows, True), (120, INTEGER8, MANY.rows, True)]
"""Architecture, format, rows, and whether all groups have the same zero points."""


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, CompileOnly]:
    homes = {"multiply": linear, "dequantize": linear, "cast": cast}
    return compile_only(monkeypatch, homes)


def empty_weight(code: int, symmetric: bool) -> PackedWeight:
    outputs, inputs = DOWN
    run = choose_run(FORMATS[code])
    width = run // 2 if code == INTEGER4 else run
    groups = 1 if FORMATS[code] is None else inputs // GROUP
    panels = outputs // PANEL
    codes = torch.empty(panels, inputs // run, PANEL, width, dtype=torch.uint8)
    return PackedWeight(
        format=code, codes=codes, scales=torch.empty(panels, groups, PANEL, dtype=torch.float16), outputs=outputs,
        zeros=torch.empty(panels, 1 if symmetric else groups, PANEL, dtype=torch.uint8), inputs=inputs, run=run,
        group_runs=0 if FORMATS[code] is None else GROUP // run, order=None,
    )  # fmt: skip


def launch(architecture: int, code: int, rows: int, symmetric: bool = True) -> None:
    compile_for(architecture)
    x, y = torch.empty(rows, DOWN[1], dtype=torch.bfloat16), torch.empty(rows, DOWN[0], dtype=torch.bfloat16)
    linear.linear(y, x, empty_weight(code, symmetric), torch.empty(DOWN[0], dtype=torch.bfloat16))


@pytest.mark.parametrize(("architecture", "code", "rows", "symmetric"), CASES, ids=str)
def test_no_spills_and_loads_ahead_of_their_use(
    kernels: dict[str, CompileOnly], architecture: int, code: int, rows: int, symmetric: bool, tmp_path: Path
) -> None:
    launch(architecture, code, rows, symmetric)
    [multiply] = kernels["multiply"].compiled
    ptx, used = multiply.asm["ptx"], resources(multiply.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0
    assert multiply.metadata.launch_pdl == ("griddepcontrol" in ptx) == (architecture >= 90)
    card, width = CARDS[architecture], 64 if code == INTEGER4 else 128
    tile = choose_tile(rows, card)
    programs = tile.resident(width, card)
    # Barriers and what tcgen05 returns take a little more.
    assert multiply.metadata.shared <= tile.shared_bytes(width, card) + (1024 if architecture == 100 else 0)
    assert card.resident(multiply.metadata.shared) >= programs >= (2 if code == INTEGER4 else 1)
    assert programs * 32 * multiply.metadata.num_warps * used["REG"] <= 64 * 1024
    units = MATRIX_UNITS[architecture]
    if tile is LEAST and units not in ptx:
        units = MATRIX_UNITS[80]  # triton 3.6 takes these for 8 rows
    assert units in ptx
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global .*, (0x\w+), ", ptx)
    assert len(copies) >= 8 and "cp.async.wait_group" in ptx
    assert {int(size, 16) for size in copies} == ({8, 16} if tile is LEAST else {16}), "x and codes"
    begin = ptx.rindex("Loop Header: Depth=2", 0, ptx.index(units))
    loop = ptx[begin : ptx.index("._crit_edge", begin)]
    # Codes go from memory to the matrix units without a way back through shared memory, sixteen bytes at a time.
    assert "ld.shared.v4.b32" in loop and not re.search(r"ld\.shared\.[bus](8|16)|st\.shared", loop)
    # Scales and zero points of the next run are asked for before the products of this one.
    early, late = loop.split(units, 1)
    assert ("ld.global" in early) == (FORMATS[code] is not None) and "ld.global" not in late
    # Whoever is last finds the parts of all others: their threads have stored them before one of each counts itself.
    before, after = ptx.split("atom.global.gpu.acq_rel.add", 1)
    assert "bar.sync" in before[before.rindex("st.global") :]
    assert ptx.count("ld.global.cg.v4") == 4 * tile.panels, "of four parts at a time"
    if architecture >= 90:
        before, after = ptx.split("griddepcontrol.wait")
        assert "prefetch.L2" in before and "ld.global" not in before and "cp.async." in after


def test_neither_the_number_of_rows_nor_the_slice_compiles_anew(
    kernels: dict[str, CompileOnly], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "mm", lambda x, dense, out: None)
    monkeypatch.setattr(linear, "DENSE_BYTES", 64 << 20)
    for rows in (1, 2, LEAST.rows, DENSE_ROWS + 1):
        launch(80, INTEGER8, rows)
    for name in ("multiply", "dequantize"):
        compiled = kernels[name].compiled
        assert len(compiled) >= 2 and len({id(kernel) for kernel in compiled}) == 1, name


@pytest.mark.parametrize("code", FORMATS)
@pytest.mark.parametrize("architecture", CARDS)
def test_dequantizing_spills_nothing(
    kernels: dict[str, CompileOnly], architecture: int, code: int, tmp_path: Path
) -> None:
    compile_for(architecture)
    next(linear.dense_slices(empty_weight(code, symmetric=False), torch.bfloat16))
    kernel = kernels["dequantize"].compiled[0]
    used = resources(kernel.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0
    assert 4 * kernel.metadata.shared <= CARDS[architecture].shared_memory
    assert 4 * 32 * kernel.metadata.num_warps * used["REG"] <= 64 * 1024
    assert re.search(r"ld\.global\.v[24]\.b32", kernel.asm["ptx"]) and "st.global.v" in kernel.asm["ptx"]


@pytest.mark.parametrize("scale", [None, 0.02], ids=["own", "static"])
@pytest.mark.parametrize(("architecture", "inputs"), [(89, 4096), (90, 28672), (100, 4096), (120, 28672)])
def test_the_cast_to_float8_holds_a_row_in_registers(
    kernels: dict[str, CompileOnly], architecture: int, inputs: int, scale: float | None, tmp_path: Path
) -> None:
    compile_for(architecture)
    cast.cast_rows(torch.empty(3, inputs, dtype=torch.bfloat16), scale)
    kernel = kernels["cast"].compiled[0]
    used = resources(kernel.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0
    # Triton 3.6 goes by float16 before sm_90.
    assert re.search(r"cvt\.rn\.satfinite\.e4m3x2\.f(32|16x2)", kernel.asm["ptx"])
    assert "ld.global.v4" in kernel.asm["ptx"] and "st.global.v" in kernel.asm["ptx"]
