"""What the CUDA schemes take and refuse, how much they hold, and their tiles; their kernels: tests/quant/kernels."""

from dataclasses import replace

import pytest
import torch

from loraplex.quant.kernels.cuda import decode, layout
from loraplex.quant.kernels.cuda.card import Card
from loraplex.quant.kernels.cuda.tiles import (
    LEAST_SHARE_RUNS,
    MOST_PROGRAMS,
    PANEL,
    choose_run,
    choose_tile,
    share_out,
)
from loraplex.quant.linears.cuda_packed import CudaPackedLinear
from loraplex.quant.linears.cuda_scaled_float8 import CudaScaledFloat8Linear
from loraplex.quant.linears.scheme import LinearMethod
from loraplex.quant.linears.torch_linear import TorchLinear
from loraplex.quant.weights.weights import Float8Weight, IntegerWeight
from tests.cards import CARDS

from .kernels.weights import random_float8, random_integers


def packed(weight: IntegerWeight | Float8Weight) -> CudaPackedLinear:
    method = CudaPackedLinear(weight.shape[1], (weight.shape[0],), torch.bfloat16)
    method.load(0, weight, None)
    method.finish()
    return method


def with_half_scales(weight: IntegerWeight) -> IntegerWeight:
    """As checkpoints have them."""
    return replace(weight, scales=weight.scales.half().float())


@pytest.mark.parametrize("group", [128, 64, 32])
def test_four_bits_with_their_scales_and_zeros_hold_little_more_than_the_format(group: int) -> None:
    groups = 1024 // group
    asymmetric = with_half_scales(random_integers(256, 1024, 4, groups))
    symmetric = with_half_scales(random_integers(256, 1024, 4, groups, symmetric=True))
    values, scales, zeros = 256 * 1024 / 2, 2 * 256 * groups, 256 * groups / 2
    assert values + scales + zeros < packed(asymmetric).weight_bytes() <= 1.03 * (values + scales + zeros)
    assert packed(symmetric).weight_bytes() == values + scales + 256


def test_float8_holds_its_bytes_and_a_scale_for_each_output_and_block() -> None:
    assert packed(random_float8(256, 512, (128, 128))).weight_bytes() == 256 * 512 + 4 * 256 * 4 + 256
    method = CudaScaledFloat8Linear(64, (32,))
    method.load(0, random_float8(32, 64, (1, 64)), torch.zeros(32))
    method.finish()
    assert method.weight_bytes() == 32 * 64 + 4 * 32 + 2 * 32


def test_what_no_kernel_takes_is_refused_with_its_part() -> None:
    method = CudaPackedLinear(96, (8, 8), torch.float16)
    with pytest.raises(ValueError, match=r"part 1 of the linear has groups of 12 inputs: .* multiple of 32"):
        method.load(1, random_integers(8, 96, 4, 8), None)
    uneven = torch.arange(96, dtype=torch.int32).flip(0) // 33
    reordered = replace(random_integers(8, 96, 4, 3), group_of=uneven)
    with pytest.raises(ValueError, match=r"part 0 .* groups of different sizes, each must have 32 inputs"):
        method.load(0, reordered, None)
    values = torch.ones(8, 96).to(torch.float8_e4m3fn)
    values.view(torch.uint8)[2, 3] = 0xFF
    with pytest.raises(ValueError, match="part 0 of the linear has a float8 value that is not a number"):
        method.load(0, Float8Weight(values=values, scales=torch.ones(1, 1), block=(8, 96)), None)
    with pytest.raises(ValueError, match=r"part 1 .* weight \[8, 64\], the model needs \[8, 96\]"):
        method.load(1, random_integers(8, 64, 4, 1), None)
    with pytest.raises(ValueError, match="part 0 of the linear has 2 scales a row, a scaled product takes 1"):
        CudaScaledFloat8Linear(64, (16,)).load(0, random_float8(16, 64, (1, 32)), None)


def test_runs_end_where_groups_do() -> None:
    assert [choose_run(group) for group in (None, 32, 64, 96, 128, 192, 256)] == [128, 32, 64, 32, 128, 64, 128]


@pytest.mark.parametrize("rows", [1, 16, 17, 64, 65, 512])
@pytest.mark.parametrize("outputs", [1, 1024, 6144, 28672, 152064])
@pytest.mark.parametrize("runs", [1, 7, 32, 112])
@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_every_program_has_its_share_and_the_card_holds_all(rows: int, outputs: int, runs: int, card: Card) -> None:
    (programs, share), tile = share_out(outputs, rows, runs, 64, card), choose_tile(rows, card)
    assert 2 <= tile.resident(64, card) == min(tile.programs, card.resident(tile.shared_bytes(64, card)))
    held = card.processors * tile.resident(64, card)
    work = runs * -(-outputs // (PANEL * tile.panels)) * -(-rows // tile.rows)
    assert (programs - 1) * share < work <= programs * share and programs <= min(held, MOST_PROGRAMS)
    assert programs == 1 or share >= LEAST_SHARE_RUNS
    # All of the card is busy, but for the last run of each program, where there is enough to do.
    assert share < 2 * LEAST_SHARE_RUNS or (share - 1) * held < work


def test_kernels_and_layout_agree_on_the_formats() -> None:
    for name in ("INTEGER4", "INTEGER8", "FLOAT8", "FLOAT4"):
        assert getattr(decode, name).value == getattr(layout, name)


@pytest.mark.parametrize("bias", [None, torch.zeros(32)], ids=["none", "some"])
def test_a_bias_is_where_the_weight_is(bias: torch.Tensor | None) -> None:
    """One on the host would be copied there, which the engine would wait for, and could not be joined to others."""
    away = torch.device("meta")
    weights = [random_integers(32, 64, 4, 1), random_float8(32, 64, (1, 64)), torch.zeros(32, 64)]
    methods: list[LinearMethod] = [
        CudaPackedLinear(64, (32,), torch.bfloat16, away), CudaScaledFloat8Linear(64, (32,), away),
        TorchLinear(64, (32,), torch.bfloat16, away),
    ]  # fmt: skip
    for method, weight in zip(methods, weights, strict=True):
        method.load(0, weight, bias)
        method.finish()
        assert method.bias().device == away and method.bias().shape == (32,)
