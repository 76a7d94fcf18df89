"""The CUDA schemes against the definition, in triton's interpreter: test_triton_interpreted.py runs this by itself.

The interpreter has no bfloat16 arithmetic: products and differences of bfloat16 are taken in fp32 here. All else is as
compiled: which codes, scales and zero points belong together, the bits of a decoded number, how sums are split.
"""

from collections.abc import Callable

import pytest
import torch

from loraplex.quant.kernels.cuda import linear as launcher
from loraplex.quant.kernels.cuda.card import INTERPRETER
from loraplex.quant.kernels.cuda.cast import cast_rows
from loraplex.quant.kernels.cuda.layout import pack
from loraplex.quant.kernels.cuda.merge import find_arrivals
from loraplex.quant.kernels.cuda.tiles import DENSE_ROWS, share_out
from loraplex.quant.linears.cuda_codes import to_codes
from loraplex.quant.linears.cuda_packed import CudaPackedLinear
from loraplex.quant.linears.cuda_scaled_float8 import CudaScaledFloat8Linear
from loraplex.quant.weights.weights import CodedWeight
from tests.triton_interpreter import last_program_first, one_patch_a_module, poisoned_memory, rounding

from .weights import random_float4, random_float8, random_integers

__all__ = ["one_patch_a_module", "poisoned_memory", "rounding"]
NAN = float("nan")
DTYPES = [torch.bfloat16, torch.float16]
TOLERANCE = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Half a unit in the last place of a result, and as much again: sums are exact to fp32."""
ROWS = [1, 2, 8, 16, 17, 64]
WEIGHTS: dict[str, Callable[[], CodedWeight]] = {
    "int4 g128": lambda: random_integers(130, 256, 4, 2),
    "int4 g128 symmetric": lambda: random_integers(64, 256, 4, 2, symmetric=True),
    "int4 g64": lambda: random_integers(70, 192, 4, 3),
    "int4 g32": lambda: random_integers(33, 96, 4, 3),
    "int4 g256 activation order": lambda: random_integers(65, 512, 4, 2, ordered=False),
    "int4 g32 activation order": lambda: random_integers(7, 128, 4, 4, ordered=False),
    "int4 per channel": lambda: random_integers(31, 201, 4, 1),
    "int8 g128": lambda: random_integers(129, 256, 8, 2),
    "int8 per channel": lambda: random_integers(66, 131, 8, 1),
    "int8 per channel symmetric": lambda: random_integers(64, 256, 8, 1, symmetric=True),
    "float8 per channel": lambda: random_float8(67, 130, (1, 130)),
    "float8 per tensor": lambda: random_float8(5, 32, (5, 32)),
    "float8 blocks": lambda: random_float8(140, 300, (128, 128)),
    "float4": lambda: random_float4(70, 224),
}
Scheme = CudaPackedLinear | CudaScaledFloat8Linear


def load(method: Scheme, parts: list[CodedWeight], biases: list[torch.Tensor | None]) -> Scheme:
    for index, (weight, bias) in enumerate(zip(parts, biases, strict=True)):
        method.load(index, weight, bias)
    method.finish()
    return method


def close(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, tolerance: float) -> None:
    """As exact as a result of its dtype can be: no weight and no part of a sum was rounded to 16 bits."""
    wanted = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(y.double(), wanted, rtol=tolerance, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", WEIGHTS)
def test_equals_the_definition(name: str, dtype: torch.dtype) -> None:
    weight = WEIGHTS[name]()
    outputs, inputs = weight.shape
    bias = torch.randn(outputs).to(dtype)
    method = load(CudaPackedLinear(inputs, (outputs,), dtype), [weight], [bias])
    for rows in ROWS:
        x = torch.randn(rows, inputs).to(dtype)
        close(method.apply(x), x, weight.dequantized(), bias, TOLERANCE[dtype])


@pytest.mark.parametrize("name", WEIGHTS)
def test_columns_are_the_stored_weights(name: str) -> None:
    weight = WEIGHTS[name]()
    outputs, inputs = weight.shape
    method = load(CudaPackedLinear(inputs, (outputs,), torch.float16), [weight], [None])
    pieces = [method.columns(first, min(first + 38, inputs)) for first in range(0, inputs, 38)]
    assert torch.equal(torch.cat(pieces).T, weight.dequantized())
    assert torch.equal(method.bias(), torch.zeros(outputs))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", WEIGHTS)
def test_dense_slices_are_the_weight_rounded_once(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = WEIGHTS[name]()
    packed = pack(to_codes(weight))
    monkeypatch.setattr(launcher, "DENSE_BYTES", 64 * weight.shape[1] * 2)
    slices = [(first, last, dense.clone()) for first, last, dense in launcher.dense_slices(packed, dtype)]
    assert [first for first, _, _ in slices] == list(range(0, weight.shape[0], 64))
    order = slice(None) if packed.order is None else packed.order
    wanted = weight.dequantized()[:, order].to(dtype)
    assert torch.equal(torch.cat([dense for _, _, dense in slices]), wanted)


def test_many_rows_are_multiplied_densely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "DENSE_BYTES", 64 * 256 * 2)
    weights = [random_integers(100, 256, 4, 2), random_integers(30, 256, 8, 1)]
    bias = torch.randn(100).half()
    method = load(CudaPackedLinear(256, (100, 30), torch.float16), weights, [bias, None])
    x = torch.randn(DENSE_ROWS + 1, 256).half()
    dense = torch.cat([weight.dequantized() for weight in weights]).half()
    torch.testing.assert_close(method.apply(x), x @ dense.T + method.bias().half(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("rows", [1, 17])
def test_parts_that_are_stored_differently(rows: int) -> None:
    """Two that merge, one of another group size, one in activation order, one of float8; every second has a bias."""
    weights = [
        random_integers(40, 256, 4, 2, seed=1), random_integers(25, 256, 4, 2, seed=2), random_integers(9, 256, 4, 4),
        random_integers(64, 256, 4, 4, ordered=False), random_float8(3, 256, (1, 256)),
    ]  # fmt: skip
    sizes = tuple(weight.shape[0] for weight in weights)
    biases = [torch.randn(size).bfloat16() if index % 2 else None for index, size in enumerate(sizes)]
    method = load(CudaPackedLinear(256, sizes, torch.bfloat16), weights, biases)
    assert isinstance(method, CudaPackedLinear) and len(method._weights) == 4
    x, dense = torch.randn(rows, 256).bfloat16(), torch.cat([weight.dequantized() for weight in weights])
    close(method.apply(x), x, dense, method.bias(), TOLERANCE[torch.bfloat16])
    assert torch.equal(method.columns(10, 200).T, dense[:, 10:200])


SHARED_OUT = {
    (40, 13, 1): (3, 5),  # One tile: parts of 5, 5 and 3 runs.
    (40, 13, 64): (3, 5),
    (500, 13, 1): (13, 4),  # Four tiles: programs begin one and end another.
    (700, 3, 17): (7, 5),  # Whole tiles between parts.
    (300, 20, 9): (12, 5),  # Four parts of each tile, none of two tiles.
    (100, 2, 64): (1, 4),
}
"""Outputs, runs and rows: programs, and runs of each, on INTERPRETER."""


@pytest.mark.parametrize("shape", SHARED_OUT, ids=str)
def test_sums_are_shared_out_and_the_same_bits_whoever_is_last(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs, runs, rows = shape
    assert share_out(outputs, rows, runs, 64, INTERPRETER) == SHARED_OUT[shape]
    weight, bias = random_integers(outputs, runs * 128, 4, runs), torch.randn(outputs).bfloat16()
    method = load(CudaPackedLinear(runs * 128, (outputs,), torch.bfloat16), [weight], [bias])
    x = torch.randn(rows, runs * 128).bfloat16()
    y = method.apply(x)
    close(y, x, weight.dequantized(), bias, TOLERANCE[torch.bfloat16])
    assert torch.equal(y, method.apply(x))
    last_program_first(monkeypatch)
    assert torch.equal(y, method.apply(x))
    assert not find_arrivals(x.device).any()


def test_not_a_number_stays_in_its_row() -> None:
    method = load(CudaPackedLinear(640, (48,), torch.float16), [random_integers(48, 640, 4, 5)], [None])
    x = torch.randn(18, 640).half()
    x[3, 7] = NAN
    y = method.apply(x)
    assert y[3].isnan().all()
    assert y[torch.arange(18) != 3].isfinite().all()


def test_no_rows_and_a_strided_input() -> None:
    weight = random_integers(48, 64, 4, 1)
    method = load(CudaPackedLinear(64, (48,), torch.float16), [weight], [None])
    assert method.apply(torch.empty(0, 64).half()).shape == (0, 48)
    x = torch.randn(6, 128).half()[:, ::2]
    close(method.apply(x), x, weight.dequantized(), torch.zeros(48), TOLERANCE[torch.float16])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inputs", [1, 63, 896])
def test_rows_cast_to_float8(inputs: int, dtype: torch.dtype) -> None:
    x = (torch.randn(5, inputs) * torch.tensor([1e-4, 1.0, 300.0, 0.0, 1.0])[:, None]).to(dtype)
    values, scales = cast_rows(x)
    wanted = x.float().abs().amax(1, keepdim=True).clamp(min=1e-30) / 448
    assert torch.equal(scales, wanted)
    assert torch.equal(values.float(), (x.float() * (1 / wanted)).to(torch.float8_e4m3fn).float())
    assert bool((values[:3].float().abs().amax(1) == 448).all()) and bool((values[3].float() == 0).all())


@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_a_row_that_is_not_finite_stays_so_in_float8(value: float) -> None:
    x = torch.randn(3, 32).bfloat16()
    x[1, 4] = value
    values, scales = cast_rows(x)
    assert (values.float() * scales)[1].isnan().any()
    assert (values.float() * scales)[[0, 2]].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_cast_to_float8_with_one_scale_are_clipped(dtype: torch.dtype) -> None:
    x = (torch.randn(4, 63) * torch.tensor([1e-4, 1.0, 300.0, 0.0])[:, None]).to(dtype)
    values, scales = cast_rows(x, 0.02)
    assert torch.equal(scales, torch.full((4, 1), 0.02))
    wanted = (x.float() * (1 / torch.tensor(0.02))).clamp(-448, 448)
    assert torch.equal(values.float(), wanted.to(torch.float8_e4m3fn).float())
    assert bool((values[2].float().abs() == 448).any())


@pytest.mark.parametrize("value", [NAN, float("inf"), float("-inf")])
def test_one_scale_clips_no_value_that_is_not_finite(value: float) -> None:
    x = torch.randn(3, 32).bfloat16()
    x[1, 4] = value
    values, _ = cast_rows(x, 0.02)
    assert values.float().isnan().nonzero().tolist() == [[1, 4]]


def test_scaled_float8_with_a_static_scale_casts_by_it() -> None:
    method = CudaScaledFloat8Linear(64, (48,), input_scale=0.01)
    method.load(0, weight := random_float8(48, 64, (1, 64)), None)
    method.finish()
    x = 3 * torch.randn(5, 64).bfloat16()
    values = (x.float() / 0.01).clamp(-448, 448).to(torch.float8_e4m3fn).float() * 0.01
    close(method.apply(x), values, weight.dequantized(), method.bias(), 2**-6)
    assert method.apply(x[:0]).shape == (0, 48)


def test_scaled_float8_equals_the_product_of_what_it_rounds() -> None:
    weights = [random_float8(48, 64, (1, 64)), random_float8(16, 64, (16, 64))]
    bias = torch.randn(48).bfloat16()
    method = load(CudaScaledFloat8Linear(64, (48, 16)), weights, [bias, None])
    dense = torch.cat([weight.dequantized() for weight in weights])
    for rows in ROWS:
        x = torch.randn(rows, 64).bfloat16()
        values, scales = cast_rows(x)
        close(method.apply(x), values.float() * scales, dense, method.bias(), 2**-7)
    assert torch.equal(method.columns(3, 60).T, dense[:, 3:60])
