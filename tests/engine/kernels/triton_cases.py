"""Norm, gate and embedding for CUDA against the CPU's references, in triton's interpreter: test_triton_interpreted.py
runs this by itself. They compute in fp32, so bfloat16 is what it is on a device.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from loraplex.engine.kernels.cuda import gate
from loraplex.engine.kernels.cuda.embedding import gather_rows
from loraplex.engine.kernels.cuda.gate import Activation, multiply_gate, multiply_gate_cast
from loraplex.engine.kernels.cuda.norm import add_rms_norm, add_rms_norm_cast
from loraplex.engine.kernels.cuda.placeholders import resolve, resolve_reference
from loraplex.engine.kernels.norm import rms_norm_reference
from loraplex.quant.kernels.cuda.cast import cast_rows
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

__all__ = ["one_patch_a_module", "poisoned_memory", "rounding"]
NAN = float("nan")
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}
"""One unit in the last place of 16-bit results: near a tie, the order of a sum decides."""
ACTIVATIONS: dict[Activation, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "silu": lambda gates, ups: F.silu(gates) * ups,
    "gelu_tanh": lambda gates, ups: F.gelu(gates, approximate="tanh") * ups,
    "clamped_swiglu": lambda gates, ups: (
        (ups.clamp(-7, 7) + 1) * gates.clamp(max=7) * torch.sigmoid(1.702 * gates.clamp(max=7))
    ),
}
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
every_shape = pytest.mark.parametrize("shape", [(1, 64), (3, 896), (2, 1023), (5, 1), (2, 4096)], ids=str)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def check_cast(result: torch.Tensor, values: torch.Tensor, scales: torch.Tensor, scale: float | None = None) -> None:
    expected, expected_scales = cast_rows(result, scale)
    assert torch.equal(values.view(torch.uint8), expected.view(torch.uint8)) and torch.equal(scales, expected_scales)


@every_dtype
@every_shape
def test_add_rms_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
    before, total = residual.clone(), residual + x
    normed = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    close(normed, rms_norm_reference(total, weight, 1e-5))
    again, values, scales = add_rms_norm_cast(x, before, weight, 1e-5)
    assert torch.equal(again, normed) and torch.equal(before, total)
    check_cast(normed, values, scales)
    check_cast(*add_rms_norm_cast(torch.zeros_like(x), total.clone(), weight, 1e-5, scale=2e-3), scale=2e-3)


def test_the_norm_of_a_row_of_zeros_is_zero_and_of_no_rows_nothing() -> None:
    weight = torch.ones(64)
    assert not add_rms_norm(torch.zeros(2, 64), torch.zeros(2, 64), weight, 1e-6).any()
    _, values, scales = add_rms_norm_cast(torch.zeros(1, 64), torch.zeros(1, 64), weight, 1e-6)
    assert not values.float().any() and scales.isfinite().all()
    assert [part.shape[0] for part in add_rms_norm_cast(*torch.empty(2, 0, 64), weight, 1e-6)] == [0, 0, 0]


@every_dtype
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(1, 64), (3, 1025), (2, 2048), (5, 1)], ids=str)
def test_multiply_gate(shape: tuple[int, int], activation: Activation, dtype: torch.dtype) -> None:
    gate_up = (torch.randn(shape[0], 2 * shape[1]) * 4).to(dtype)
    expected = ACTIVATIONS[activation](*gate_up.double().chunk(2, dim=-1))
    result = multiply_gate(gate_up, activation)
    close(result, expected.to(dtype))
    again, values, scales = multiply_gate_cast(gate_up, activation)
    assert torch.equal(again, result)
    check_cast(result, values, scales)
    check_cast(*multiply_gate_cast(gate_up, activation, scale=5e-3), scale=5e-3)


def test_rows_too_wide_for_one_program_are_cast_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    gate_up = torch.randn(3, 600).bfloat16()
    fused = [multiply_gate_cast(gate_up, scale=scale) for scale in (None, 1e-3)]
    monkeypatch.setattr(gate, "GATE_COLUMNS", 256)
    apart = [multiply_gate_cast(gate_up, scale=scale) for scale in (None, 1e-3)]
    for one, other in zip(sum(fused, ()), sum(apart, ()), strict=True):
        assert torch.equal(one.float(), other.float())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_multiply_gate_at_the_extremes(activation: Activation) -> None:
    gates = torch.tensor([-1e30, -200, -89, -88, -20, 0, 20, 88, 200, 1e12, NAN])
    wanted = ACTIVATIONS[activation](gates, torch.ones_like(gates))
    result = multiply_gate(torch.cat((gates, torch.ones_like(gates)))[None], activation)
    torch.testing.assert_close(result[0], wanted, equal_nan=True, atol=1e-6, rtol=1e-6)


@every_dtype
@pytest.mark.parametrize("size", [1, 896, 1025])
def test_gather_rows(size: int, dtype: torch.dtype) -> None:
    table = torch.randn(11, size).to(torch.bfloat16)
    for ids in (torch.tensor([10, 0, 3, 3]), torch.tensor([-1, 11, 10, -(2**31)], dtype=torch.int32)):
        known = (ids >= 0) & (ids < 11)
        expected = F.embedding(ids.clamp(0, 10).long(), table).to(dtype) * known[:, None]
        assert torch.equal(gather_rows(ids, table, dtype), expected)
    assert gather_rows(torch.empty(0, dtype=torch.int64), table, dtype).shape == (0, size)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_placeholders_become_what_was_drawn(dtype: torch.dtype) -> None:
    drawn, sources = torch.tensor([7, -1, 2**20], dtype=dtype), torch.tensor([2, -1, 1, 0, 2], dtype=torch.int32)
    one, other = torch.arange(100, 105), torch.arange(100, 105)
    resolve(one, sources, drawn)
    resolve_reference(other, sources, drawn)
    assert one.tolist() == other.tolist() == [2**20, 101, 0, 7, 2**20]
    resolve(one[:0], sources[:0], drawn)


@every_dtype
def test_a_row_does_not_depend_on_its_neighbours(dtype: torch.dtype) -> None:
    x, weight = torch.randn(9, 512).to(dtype), torch.randn(512).to(dtype)
    poisoned = x.clone()
    poisoned[[0, 8]] = NAN
    for values in (x, poisoned):
        together = add_rms_norm_cast(values, torch.zeros_like(values), weight, 1e-5), multiply_gate_cast(values)
        for row in (3, 7):
            alone = values[row : row + 1].clone()
            apart = add_rms_norm_cast(alone, torch.zeros_like(alone), weight, 1e-5), multiply_gate_cast(alone)
            for many, one in zip(sum(together, ()), sum(apart, ()), strict=True):
                assert torch.equal(many[row : row + 1].float(), one.float())
