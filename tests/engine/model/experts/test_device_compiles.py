"""What layers with experts launch on CUDA as it is compiled for devices that are not here: no spills, loads ahead."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex.engine.kernels.cuda.experts import routing, rows, sums
from loraplex.lora.kernels.cuda import entry, expert_keys
from loraplex.lora.kernels.cuda.tiles import PAGE, bound_chunks, intermediate_elements
from loraplex.quant.kernels.cuda import exact, expert_linear
from loraplex.quant.kernels.cuda.expert_linear import GroupedRows
from loraplex.quant.kernels.cuda.expert_tiles import PIECES, bound_pieces, choose_piece
from loraplex.quant.kernels.cuda.layout import FLOAT4, FLOAT8, HALF_BYTES, INTEGER4, INTEGER8, PackedWeight
from loraplex.quant.kernels.cuda.tiles import PANEL, choose_run
from loraplex.quant.linears.cuda_experts import CudaExperts
from loraplex.quant.linears.cuda_packed import CudaPackedLinear
from loraplex.quant.linears.torch_linear import TorchLinear
from tests.ahead_of_time import CompileOnly, compile_for, compile_only, resources
from tests.cards import CARDS, ROOMY

HOMES = {
    "choose_experts": routing, "place_rows": rows, "list_pieces": rows, "add_up": sums, "add_gated": sums,
    "exact": exact, "multiply_floats": expert_linear, "multiply_codes": expert_linear, "write_keys": expert_keys,
    "shrink": entry, "expand": entry,
}  # fmt: skip
QWEN3, GPT_OSS = (2048, 768, 128, 8), (2880, 2880, 32, 4)
"""Hidden and inner size, experts, experts of a token: of Qwen3-30B-A3B and gpt-oss-20b."""
TOKENS = {8: 16, 16: 128, 64: 512}
"""Rows of a piece -> tokens of Qwen3-30B-A3B that make such."""


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, CompileOnly]:
    return compile_only(monkeypatch, HOMES)


def check(kernel: Any, architecture: int, folder: Path, programs: int = 4) -> dict[str, int]:
    """`programs`: that fit a multiprocessor at once, at least, where programs may have more than 100 KB."""
    used = resources(kernel.asm["cubin"], folder)
    assert used["STACK"] == used["LOCAL"] == 0, used
    assert programs * used["REG"] * 32 * kernel.metadata.num_warps <= 64 * 1024, used
    card = CARDS[architecture]
    assert card.resident(kernel.metadata.shared) >= (programs if architecture in ROOMY else 1)
    assert ("griddepcontrol" in kernel.asm["ptx"]) == (architecture >= 90) == kernel.metadata.launch_pdl
    return used


ROUTINGS = [(128, 8, routing.SOFTMAX, 1, 1), (512, 10, routing.SIGMOID, 8, 4), (32, 4, routing.SOFTMAX_OF_CHOSEN, 1, 1)]
"""Experts, those of a token, scores, groups, those of a token."""


@pytest.mark.parametrize("architecture", CARDS)
def test_routing_and_grouping(kernels: dict[str, CompileOnly], architecture: int, tmp_path: Path) -> None:
    compile_for(architecture)
    for experts, chosen, kind, groups, of_token in ROUTINGS:
        logits, correction = torch.empty(3, experts), torch.empty(experts if groups > 1 else 0)
        routing.route(logits, correction, None, kind.value, chosen, True, 1.0, groups, of_token)
    for tokens in (1, 16, 300):
        keys = torch.empty(8 * tokens, dtype=torch.int32)
        rows.group_rows(keys, choose_piece(tokens, 8, 128), bound_pieces(tokens, 8, 128, choose_piece(tokens, 8, 128)))
        exact.multiply_exact(torch.empty(tokens, 2048), torch.empty(128, 2048), None)
    table = torch.empty(8, 390, 48, dtype=torch.int32), torch.empty(8, 390, dtype=torch.int64)
    pairs = torch.empty(16, 8, dtype=torch.int32)
    expert_keys.find_keys(pairs, pairs[:, 0].contiguous(), *table, torch.empty(128, 3, dtype=torch.int32), 7)
    y, weights = torch.empty(128, 2048, dtype=torch.bfloat16), torch.empty(16, 8)
    sums.sum_experts(y, pairs.view(-1), weights)
    sums.add_shared(y, y, torch.empty(128, 1))
    names = ("choose_experts", "place_rows", "list_pieces", "exact", "write_keys", "add_up", "add_gated")
    for name in names:
        for kernel in kernels[name].compiled:
            check(kernel, architecture, tmp_path)
    for name, kinds in (("place_rows", 1), ("list_pieces", 2), ("exact", 1)):
        assert len({id(kernel) for kernel in kernels[name].compiled}) == kinds, "tokens compile nothing anew"
    for name in ("add_up", "add_gated"):
        assert "ld.global.v4.b32" in kernels[name].compiled[0].asm["ptx"]


def grouped(tokens: int, experts: int, chosen: int) -> GroupedRows:
    most = choose_piece(tokens, chosen, experts)
    pieces = torch.empty(bound_pieces(tokens, chosen, experts, most), 3, dtype=torch.int32)
    pairs, owners = torch.empty(tokens * chosen, dtype=torch.int32), torch.empty(tokens, chosen, dtype=torch.int32)
    return GroupedRows(pieces, pairs, most, chosen, owners)


def float_experts(outputs: int, inputs: int, experts: int, has_bias: bool) -> CudaExperts:
    method = TorchLinear(inputs, (outputs,), torch.bfloat16)
    bias = torch.empty(outputs) if has_bias else None
    method.load(0, torch.empty(outputs, inputs, dtype=torch.bfloat16), bias)
    method.finish()
    return CudaExperts([method] * experts)


@pytest.mark.parametrize("architecture", CARDS)
@pytest.mark.parametrize("rows", PIECES)
def test_floats_come_sixteen_bytes_at_a_time_and_steps_ahead(
    kernels: dict[str, CompileOnly], architecture: int, rows: int, tmp_path: Path
) -> None:
    compile_for(architecture)
    for hidden, inner, experts, chosen in (QWEN3, GPT_OSS):
        tokens = TOKENS[rows] * 8 * experts // chosen // 128
        for outputs, inputs, by_token in ((2 * inner, hidden, True), (hidden, inner, False)):
            product = float_experts(outputs, inputs, experts, has_bias=experts == 32)
            x = torch.empty(tokens * (1 if by_token else chosen), inputs, dtype=torch.bfloat16)
            product.apply(x, grouped(tokens, experts, chosen), by_token=by_token)
    assert len(kernels["multiply_floats"].compiled) == 4
    for kernel in kernels["multiply_floats"].compiled:
        check(kernel, architecture, tmp_path, programs=1 if rows == 64 else 2)
        copies = re.findall(r"cp\.async\.c[ag]\.shared\.global .*, (0x\w+), ", kernel.asm["ptx"])
        assert len(copies) >= 4 and {int(size, 16) for size in copies} == {16}, copies


CODES = {INTEGER4: 128, FLOAT8: 128, INTEGER8: 32, FLOAT4: 128}
"""Inputs of a group; of FLOAT4, of the four whose scales are one number."""


def code_experts(code: int, outputs: int, inputs: int, experts: int) -> CudaExperts:
    group = CODES[code]
    run, panels = choose_run(group), -(-outputs // PANEL)
    runs, groups = -(-inputs // run), -(-inputs // group)
    method = CudaPackedLinear(inputs, (outputs,), torch.bfloat16)
    scales = torch.empty(panels, groups, PANEL, dtype=torch.int32 if code == FLOAT4 else torch.float32)
    zeros = torch.empty(panels, groups if code == INTEGER4 else 1, PANEL, dtype=torch.uint8)
    codes = torch.empty(panels, runs, PANEL, run // 2 if code in HALF_BYTES else run, dtype=torch.uint8)
    method._weights = [
        PackedWeight(
            format=code, codes=codes, scales=scales, zeros=zeros, outputs=outputs, inputs=inputs, run=run,
            group_runs=group // run, order=None,
        )
    ]  # fmt: skip
    return CudaExperts([method] * experts)


@pytest.mark.parametrize("architecture", CARDS)
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("rows", PIECES)
def test_codes_spill_nothing(
    kernels: dict[str, CompileOnly], architecture: int, code: int, rows: int, tmp_path: Path,

) -> None:  # fmt: skip
    compile_for(architecture)
    hidden, inner, experts, chosen = GPT_OSS if code in (INTEGER8, FLOAT4) else QWEN3
    tokens = TOKENS[rows] * 8 * experts // chosen // 128
    product = code_experts(code, hidden, inner, experts)
    product.apply(
        torch.empty(tokens * chosen, inner, dtype=torch.bfloat16), grouped(tokens, experts, chosen), by_token=False
    )
    kernel = kernels["multiply_codes"].compiled[0]
    check(kernel, architecture, tmp_path, programs=1 if rows == 64 else 2)
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global .*, (0x\w+), ", kernel.asm["ptx"])
    sizes = {int(size, 16) for size in copies}
    assert len(copies) >= 4 and min(sizes) >= (4 if code in (INTEGER8, FLOAT4) else 8), copies
    assert code == INTEGER8 or 16 in sizes


@pytest.mark.parametrize("architecture", CARDS)
def test_adapters_of_experts_spill_nothing(kernels: dict[str, CompileOnly], architecture: int, tmp_path: Path) -> None:
    compile_for(architecture)
    hidden, inner, experts, chosen = QWEN3
    tokens, pages = 64, 8
    pairs = tokens * chosen
    row = torch.empty(pairs, dtype=torch.int32)
    for widths, inputs, by_token in (((inner, inner), hidden, True), ((hidden,), inner, False)):
        chunks = bound_chunks(pairs, experts * 8)
        step = entry.StepTensors(
            torch.empty(chunks, 3, dtype=torch.int32), row, torch.empty(tokens),
            torch.empty(intermediate_elements(pairs, pages)),
            torch.empty(PAGE * (inputs + widths[0]), dtype=torch.bfloat16),
            torch.empty(8, 390, pages, dtype=torch.int64), torch.empty(8, 390, 48, dtype=torch.int32),
            torch.empty(8, 390, 48),
        )  # fmt: skip
        on = entry.OnExperts(torch.empty(experts, len(widths), dtype=torch.int32), row, chosen, by_token)
        x = torch.empty(tokens if by_token else pairs, inputs, dtype=torch.bfloat16)
        entry.add_lora(torch.empty(pairs, sum(widths), dtype=torch.bfloat16), x, step, chunks, 3, (), widths, on)
    for name in ("shrink", "expand"):
        for kernel in kernels[name].compiled:
            check(kernel, architecture, tmp_path, programs=3)
            copies = re.findall(r"cp\.async\.cg\.shared\.global .*, 0x10,", kernel.asm["ptx"])
            assert len(copies) >= 8, "steps ahead, 16 bytes at a time"
