"""The CUDA attention as the launcher has it compiled, for devices that are not here: no spills, loads ahead of use."""

import re
from pathlib import Path

import pytest
import torch

from loraplex.engine.attention.kernels.cuda import launch
from loraplex.engine.attention.kernels.cuda.tiles import PARTIAL_TOKENS, choose_tile
from tests.ahead_of_time import MATRIX_UNITS, CompileOnly, compile_for, compile_only, resources
from tests.cards import CARDS, ROOMY
from tests.launch_order import reads_of

BF16, E4M3, E5M2, INT8 = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
HEADS, KV_HEADS, BLOCK = 32, 8, 16
DECODE, SHORT, LONG = (64, 64), (256, 2), (2048, 2)
"""Tokens and sequences of a step."""
CASES = [(architecture, dtype, 128, DECODE) for architecture in CARDS for dtype in (BF16, E4M3)]
CASES += [(architecture, BF16, 128, LONG) for architecture in CARDS]
CASES += [(90, E5M2, 96, DECODE), (90, BF16, 80, SHORT), (90, E4M3, 128, SHORT), (90, E4M3, 64, LONG)]
CASES += [(80, INT8, 128, SHORT), (80, INT8, 256, LONG), (86, BF16, 128, SHORT), (89, E4M3, 128, SHORT)]
CASES += [(120, BF16, 128, SHORT), (120, INT8, 256, LONG)]
"""What is served most on all architectures. A compilation takes a second: else every value occurs here or in the lists
below, and of each kind of step what took most registers on each architecture when all combinations were counted."""


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, CompileOnly]:
    return compile_only(monkeypatch, dict.fromkeys(("attend", "rotate_and_write"), launch))


def empty_layer(dtype: torch.dtype, size: int, static: bool = False) -> launch.LayerCache:
    key, value = torch.empty(2, 4, KV_HEADS, BLOCK, size).to(dtype)
    scaled = 4 if dtype in launch.FORMATS and not static else 0
    scales = torch.empty(scaled, KV_HEADS, BLOCK, 2, dtype=BF16)
    return launch.LayerCache(key, value, scales, torch.empty(2 * static, KV_HEADS))


def attend(
    dtype: torch.dtype, size: int, tokens: int, sequences: int, blocks: int = 512, window: int = 0,
    soft_cap: float = 0.0, static: bool = False, uneven: bool = False, sinks: bool = False, scale: float = 0.125,
) -> None:  # fmt: skip
    query = torch.empty(tokens, HEADS, size, dtype=BF16)
    sums, states = (torch.empty(PARTIAL_TOKENS, HEADS, width) for width in (size, 2))
    partials = launch.Partials(sums, states, torch.empty(PARTIAL_TOKENS, KV_HEADS, dtype=torch.int32))
    table, starts = torch.empty(sequences, blocks, dtype=torch.int32), torch.empty(sequences + 1, dtype=torch.int32)
    head, layer = launch.Head(scale, soft_cap, window), empty_layer(dtype, size, static)
    of_heads = torch.empty(HEADS) if sinks else None
    launch.attend_paged(query, query, layer, head, partials, table, starts, starts[1:].clone(), uneven, of_heads)


@pytest.mark.parametrize(("architecture", "dtype", "size", "step"), CASES, ids=str)
def test_no_spills_and_loads_ahead_of_their_use(
    kernels: dict[str, CompileOnly], architecture: int, dtype: torch.dtype, size: int, step: tuple[int, int],
    tmp_path: Path,
) -> None:  # fmt: skip
    compile_for(architecture)
    attend(dtype, size, *step)
    kernel = kernels["attend"].compiled[0]
    used, ptx, shared = resources(kernel.asm["cubin"], tmp_path), kernel.asm["ptx"], kernel.metadata.shared
    assert used["STACK"] == used["LOCAL"] == 0
    card, decodes = CARDS[architecture], step == DECODE
    programs = (3 if card.multiplies_shared and used["REG"] <= 168 else 2) if decodes else 1
    assert card.resident(shared) >= programs
    assert programs * 32 * kernel.metadata.num_warps * used["REG"] <= 64 * 1024
    assert (MATRIX_UNITS[80] if decodes else MATRIX_UNITS[architecture]) in ptx
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global .*, (0x\w+), ", ptx)
    rows = [copy for copy in copies if int(copy, 16) >= 8]
    tile = choose_tile(*step, HEADS, KV_HEADS, size, dtype.itemsize, BLOCK, card)
    assert len(rows) >= (8 * (tile.stages - 1) if decodes else 4) and "cp.async.wait_group" in ptx
    scales = len(copies) - len(rows)
    assert (scales > 0) == (dtype in launch.FORMATS), "scales come ahead of their use, too"
    assert tile.stages >= (4 if decodes and architecture in ROOMY else 2)
    padded = 2 ** (size - 1).bit_length()
    buffers = (tile.stages - 1) * 2 * tile.keys * padded * dtype.itemsize
    assert not decodes or shared >= buffers, "all steps but the one in use are on their way"
    assert shared <= tile.shared_bytes(padded, dtype.itemsize) or card.multiplies_shared
    assert ("cvt.rn.f16x2.e4m3x2" in ptx) == (dtype == E4M3 and card.has_float8)


@pytest.mark.parametrize(("architecture", "dtype"), [(80, E4M3), (90, E4M3), (90, INT8), (100, E5M2)], ids=str)
def test_bytes_of_a_decode_go_to_the_matrix_units_without_a_way_back(
    kernels: dict[str, CompileOnly], architecture: int, dtype: torch.dtype
) -> None:
    """Sixteen at a time from shared memory, to which nothing goes back; warps wait for each other's copies alone."""
    compile_for(architecture)
    attend(dtype, 128, *DECODE)
    ptx = kernels["attend"].compiled[0].asm["ptx"]
    last = ptx.rindex("mma.sync")
    header = ptx.rindex("Loop Header", 0, last)
    loop = ptx[header : ptx.index("bra", ptx.index("cp.async.commit_group", last))]
    assert len(re.findall(r"ld\.shared\.v4\.b32", loop)) == 8 and not re.search(r"ld\.shared\.[bus](8|16)", loop)
    assert not re.search("ldmatrix|stmatrix|st.shared", loop)
    assert loop.count("mma.sync") == 32 and loop.count("bar.sync") <= 2


SHARED_OUT = [(architecture, BF16, 128, False) for architecture in CARDS]
SHARED_OUT += [(architecture, E4M3, 128, True) for architecture in CARDS]
SHARED_OUT += [(80, E4M3, 128, False), (90, E4M3, 128, False), (80, BF16, 256, False), (100, BF16, 64, False)]


@pytest.mark.parametrize(("architecture", "dtype", "size", "static"), SHARED_OUT, ids=str)
def test_decodes_that_share_their_keys_out_spill_nothing(
    kernels: dict[str, CompileOnly], architecture: int, dtype: torch.dtype, size: int, static: bool, tmp_path: Path
) -> None:  # fmt: skip
    """For a few sequences and for many with one long context alike, whatever their number; 2,047 have one part more."""
    compile_for(architecture)
    for sequences, uneven in ((64, True), (1, False), (2047, True)):
        attend(dtype, size, sequences, sequences, uneven=uneven, static=static)
    kernel, *others = kernels["attend"].compiled
    assert len(others) == 2 and all(other is kernel for other in others)
    used = resources(kernel.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0
    assert 2 * 32 * kernel.metadata.num_warps * used["REG"] <= 64 * 1024
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global .*, 0x(?:10|8), ", kernel.asm["ptx"])
    assert len(copies) >= (24 if architecture in ROOMY else 16), "loads ahead of their use"


@pytest.mark.parametrize(
    ("architecture", "dtype", "size"),
    [(80, E5M2, 128), (90, E4M3, 256), (100, INT8, 64), (86, INT8, 128), (89, E4M3, 256), (120, E5M2, 64)],
    ids=str,
)
def test_static_scales_spill_nothing_in_decodes(
    kernels: dict[str, CompileOnly], architecture: int, dtype: torch.dtype, size: int, tmp_path: Path
) -> None:  # fmt: skip
    compile_for(architecture)
    attend(dtype, size, *DECODE, static=True)
    kernel = kernels["attend"].compiled[0]
    used = resources(kernel.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0
    programs = 3 if CARDS[architecture].multiplies_shared else 2
    assert programs * 32 * kernel.metadata.num_warps * used["REG"] <= 64 * 1024
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global .*, 0x(?:10|8), ", kernel.asm["ptx"])
    assert len(copies) >= (24 if architecture in ROOMY else 16), "loads ahead of their use"


@pytest.mark.parametrize(
    ("architecture", "step"), [(80, LONG), (86, LONG), (90, DECODE), (100, LONG), (120, LONG)], ids=str
)
def test_a_window_and_a_soft_cap_spill_nothing(
    kernels: dict[str, CompileOnly], architecture: int, step: tuple[int, int], tmp_path: Path
) -> None:  # fmt: skip
    compile_for(architecture)
    attend(BF16, 256, *step, window=4096, soft_cap=50.0)
    kernel = kernels["attend"].compiled[0]
    used = resources(kernel.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0
    assert (MATRIX_UNITS[80] if step == DECODE else MATRIX_UNITS[architecture]) in kernel.asm["ptx"]


LARGE = [(architecture, dtype, DECODE) for architecture in CARDS for dtype in (BF16, E4M3, INT8)]
LARGE += [(80, BF16, LONG), (86, BF16, LONG), (90, E4M3, LONG), (100, INT8, LONG), (120, E4M3, LONG)]


@pytest.mark.parametrize(("architecture", "dtype", "step"), LARGE, ids=str)
def test_heads_of_512_spill_nothing(
    kernels: dict[str, CompileOnly], architecture: int, dtype: torch.dtype, step: tuple[int, int], tmp_path: Path
) -> None:  # fmt: skip
    """Two programs of bfloat16 decodes fit, which keep more in shared memory than those of 8 bits."""
    compile_for(architecture)
    attend(dtype, 512, *step)
    kernel = kernels["attend"].compiled[0]
    used, shared = resources(kernel.asm["cubin"], tmp_path), kernel.metadata.shared
    assert used["STACK"] == used["LOCAL"] == 0
    programs = 2 if step == DECODE and dtype == BF16 else 1
    assert CARDS[architecture].resident(shared) >= programs
    assert programs * 32 * kernel.metadata.num_warps * used["REG"] <= 64 * 1024
    assert len(re.findall(r"cp\.async\.c[ag]\.shared\.global .*, 0x(?:10|8), ", kernel.asm["ptx"])) >= 4


@pytest.mark.parametrize("size", [256, 512])
@pytest.mark.parametrize("architecture", CARDS)
def test_large_heads_of_float32_start_on_every_card(
    kernels: dict[str, CompileOnly], architecture: int, size: int
) -> None:
    compile_for(architecture)
    for step in (DECODE, SHORT, LONG):
        attend(torch.float32, size, *step)
    assert len(kernels["attend"].compiled) == 3


SINKS = [(80, BF16, 64, DECODE), (89, BF16, 64, LONG), (90, E4M3, 64, DECODE), (90, BF16, 64, LONG)]
SINKS += [(100, BF16, 128, LONG), (120, E4M3, 64, DECODE)]


@pytest.mark.parametrize(("architecture", "dtype", "size", "step"), SINKS, ids=str)
def test_sinks_spill_nothing(
    kernels: dict[str, CompileOnly], architecture: int, dtype: torch.dtype, size: int, step: tuple[int, int],
    tmp_path: Path,
) -> None:  # fmt: skip
    compile_for(architecture)
    attend(dtype, size, *step, window=128, sinks=True)
    used = resources(kernels["attend"].compiled[0].asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0


def test_a_cache_that_needs_64_bits_for_places(
    kernels: dict[str, CompileOnly], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_for(90)
    monkeypatch.setattr(launch, "WIDE_NUMBERS", 0)
    attend(E4M3, 128, *DECODE)
    kernel = kernels["attend"].compiled[0]
    used = resources(kernel.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0
    assert len(re.findall(r"cp\.async\.c[ag]\.shared\.global .*, 0x(?:10|8), ", kernel.asm["ptx"])) >= 24


@pytest.mark.parametrize("architecture", CARDS)
@pytest.mark.parametrize("step", [(1, 1), SHORT], ids=str)
def test_parts_are_read_after_the_last_has_arrived(
    kernels: dict[str, CompileOnly], architecture: int, step: tuple[int, int]
) -> None:
    """Four numbers at a time, and never from the first cache, which may hold what was there before."""
    compile_for(architecture)
    attend(BF16, 128, *step, blocks=8192)
    kernel = kernels["attend"].compiled[0]
    lines = kernel.asm["ptx"].splitlines()
    parameters = [name for name, kind in kernel.src.signature.items() if kind != "constexpr"]
    parts = reads_of(lines, {parameters.index(name) for name in ("sums", "states")})
    [arrival] = [number for number, line in enumerate(lines) if "atom.global.gpu.acq_rel" in line]
    assert all(lines.index(line) > arrival and ".cg" in line for line in parts)
    assert any("ld.global.cg.v4" in line for line in parts)
    assert any("bar.sync" in line for line in lines[arrival - 12 : arrival])
    assert ("griddepcontrol.launch_dependents" in kernel.asm["ptx"]) == (architecture >= 90)
    assert ("griddepcontrol.wait" in kernel.asm["ptx"]) == kernel.metadata.launch_pdl == (architecture >= 90)


STORED = [
    (80, E4M3, 128, True), (80, INT8, 128, False), (80, BF16, 64, False), (90, E4M3, 256, False), (90, INT8, 64, True),
    (90, E5M2, 128, False), (100, E4M3, 128, False), (100, BF16, 128, False),
    (86, BF16, 128, False), (120, E4M3, 128, False),
]  # fmt: skip
"""A third of the registers that there are, wherever they were counted."""


@pytest.mark.parametrize(("architecture", "dtype", "size", "static"), STORED, ids=str)
def test_rope_and_the_write_to_any_cache_spill_nothing(
    kernels: dict[str, CompileOnly], architecture: int, dtype: torch.dtype, size: int, static: bool, tmp_path: Path
) -> None:  # fmt: skip
    compile_for(architecture)
    table, place = torch.empty(4096, size // 2), torch.empty(64, dtype=torch.int64)
    query, heads = (torch.empty(64, count, size, dtype=BF16) for count in (HEADS, HEADS + 2 * KV_HEADS))
    turn = launch.Turn(table, table, None, None, 0.0)
    clipped = torch.empty(65, dtype=torch.int64)
    for first in (0, 1):
        counts = clipped[first : first + 64] if static else None
        launch.write_heads(query, heads, empty_layer(dtype, size, static), turn, place, place, counts)
    kernel, again = kernels["rotate_and_write"].compiled
    assert again is kernel, "one wherever a layer's counts begin"
    used = resources(kernel.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0 and used["REG"] * 32 * kernel.metadata.num_warps <= 64 * 1024
    assert "ld.global.v" in kernel.asm["ptx"] and "st.global.v" in kernel.asm["ptx"]


@pytest.mark.parametrize(("architecture", "dtype"), [(80, E4M3), (90, BF16), (100, INT8)], ids=str)
def test_writing_holds_a_token_in_registers(
    kernels: dict[str, CompileOnly], architecture: int, dtype: torch.dtype, tmp_path: Path
) -> None:  # fmt: skip
    compile_for(architecture)
    table, norm, place = torch.empty(4096, 64), torch.empty(128), torch.empty(64, dtype=torch.int64)
    turn = launch.Turn(table, table, norm, norm, 1e-6)
    query, heads = (torch.empty(64, count, 128, dtype=BF16) for count in (HEADS, HEADS + 2 * KV_HEADS))
    own = launch.OwnNorms(place.int(), norm, torch.empty(8, 14, dtype=torch.int64), 16, 12, 13)
    for norms in (None, own, own._replace(layer=1)):
        launch.write_heads(query, heads, empty_layer(dtype, 128), turn, place, place, None, norms)
    plain, owned, again = kernels["rotate_and_write"].compiled
    assert owned is again, "one for all layers"
    for kernel in (plain, owned):
        used = resources(kernel.asm["cubin"], tmp_path)
        assert used["STACK"] == used["LOCAL"] == 0
        assert "ld.global.v4" in kernel.asm["ptx"] and "st.global.v" in kernel.asm["ptx"]


TABLE, NORM = torch.empty(4096, 32), torch.empty(128)
TURNS = {
    "part of a head": launch.Turn(TABLE, TABLE, NORM, NORM, 1e-6),
    "pairs of a part": launch.Turn(TABLE, TABLE, interleaved=True),
    "no rope, values normed": launch.Turn(None, None, NORM, NORM, 1e-6, value_norm=True),
    "whole norms, queries scaled": launch.Turn(
        TABLE, TABLE, torch.empty(HEADS * 128), torch.empty(KV_HEADS * 128), 1e-6, query_scale=torch.empty(4096)
    ),
}


@pytest.mark.parametrize("kind", TURNS)
@pytest.mark.parametrize(("architecture", "dtype"), [(80, BF16), (90, E4M3)], ids=str)
def test_what_other_families_do_to_heads_spills_nothing(
    kernels: dict[str, CompileOnly], architecture: int, dtype: torch.dtype, kind: str, tmp_path: Path
) -> None:  # fmt: skip
    """With keys and values, and of queries alone."""
    compile_for(architecture)
    place = torch.empty(64, dtype=torch.int64)
    query = torch.empty(64, HEADS, 128, dtype=BF16)
    for count in (HEADS + 2 * KV_HEADS, HEADS):
        heads = torch.empty(64, count, 128, dtype=BF16)
        own = launch.OwnNorms(place.int(), NORM, torch.empty(8, 14, dtype=torch.int64), 16, 12, 13)
        for norms in (None, own) if TURNS[kind].query_norm is not None else (None,):
            launch.write_heads(query, heads, empty_layer(dtype, 128), TURNS[kind], place, place, None, norms)
    for kernel in kernels["rotate_and_write"].compiled:
        used = resources(kernel.asm["cubin"], tmp_path)
        assert used["STACK"] == used["LOCAL"] == 0 and used["REG"] * 32 * kernel.metadata.num_warps <= 64 * 1024


def test_neither_tokens_nor_contexts_compile_anew(kernels: dict[str, CompileOnly]) -> None:
    compile_for(80)
    for tokens, blocks in ((1, 1000), (2, 1024), (11, 8192), (12, 600)):
        attend(BF16, 128, tokens, tokens, blocks)
    assert len(kernels["attend"].compiled) == 4
    assert len({id(kernel) for kernel in kernels["attend"].compiled}) == 1


def test_scales_and_soft_caps_of_layers_compile_nothing_anew(kernels: dict[str, CompileOnly]) -> None:
    """GPT-2 may divide each layer's scale by the layer's number."""
    compile_for(90)
    for scale in (1.0, 0.5, 0.1):
        attend(BF16, 128, *DECODE, scale=scale)
    for soft_cap in (50.0, 30.0, 1.0):
        attend(BF16, 128, *DECODE, soft_cap=soft_cap)
    plain, capped = kernels["attend"].compiled[:3], kernels["attend"].compiled[3:]
    assert all(kernel is plain[0] for kernel in plain) and all(kernel is capped[0] for kernel in capped)
    assert plain[0] is not capped[0]
