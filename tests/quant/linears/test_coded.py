"""Codes of 4 and 8 bits against their dequantized weights in float64: kinds, groups, odd shapes, both kernels."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from loraplex.quant.kernels.any_linear import any_linear
from loraplex.quant.kernels.instructions import dots
from loraplex.quant.kernels.instructions.dots import HAS_BFLOAT16, HAS_INTEGERS
from loraplex.quant.kernels.layouts.expand import FLOAT4, FLOAT8, INT4, INT8
from loraplex.quant.linears.code_kernels import DOTS, INTEGERS, SPLIT_DOTS, VECTORS, CodeKernel, choose_kernel
from loraplex.quant.linears.coded import CodedLinear, coded_form
from loraplex.quant.linears.scaled_input import ScaledInputLinear
from loraplex.quant.linears.stored_float import StoredFloatLinear
from loraplex.quant.weights.weights import CodedWeight, Float4Weight, Float8Weight, IntegerWeight, float4_values

KERNELS = [VECTORS, *([DOTS, SPLIT_DOTS] if HAS_BFLOAT16 else []), *([INTEGERS] if HAS_INTEGERS else [])]
ROWS = [1, 2, 3, 5, 6, 7, 8, 9, 12, 13, 16, 17, 31, 33, 47, 530]


def integers(outputs: int, inputs: int, group: int, bits: int, ordered: bool = False) -> IntegerWeight:
    groups = inputs // group
    return IntegerWeight(
        bits=bits,
        values=torch.randint(0, 2**bits, (outputs, inputs), dtype=torch.uint8),
        scales=torch.rand(outputs, groups) / 2**bits,
        zeros=torch.randint(0, 2**bits, (outputs, groups), dtype=torch.uint8),
        group_of=(torch.randperm(inputs) % groups).int() if ordered else None,
    )


def float8(outputs: int, inputs: int, block: tuple[int, int]) -> Float8Weight:
    codes = torch.randint(0, 256, (outputs, inputs), dtype=torch.uint8)
    codes[codes & 0x7F == 0x7F] = 1
    scales = torch.rand(-(-outputs // block[0]), -(-inputs // block[1]))
    return Float8Weight(values=codes.view(torch.float8_e4m3fn), scales=scales, block=block)


def float4(outputs: int, inputs: int) -> Float4Weight:
    halves = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8)
    exponents = torch.randint(120, 127, (outputs, inputs // 32), dtype=torch.uint8)
    return Float4Weight(halves=halves, exponents=exponents)


CASES = {
    "int4, groups of 128": lambda: [integers(70, 256, 128, 4), integers(31, 256, 128, 4)],
    "int4, groups of 32": lambda: [integers(40, 96, 32, 4)],
    "int4, groups longer than a block": lambda: [integers(33, 1024, 512, 4)],
    "int4, channels, odd": lambda: [integers(5, 131, 131, 4)],
    "int4, activation order": lambda: [integers(37, 128, 32, 4, ordered=True)],
    "int8, channels": lambda: [integers(64, 640, 640, 8), integers(9, 640, 640, 8)],
    "int8, groups": lambda: [integers(20, 192, 64, 8)],
    "float8, one scale": lambda: [float8(50, 160, (50, 160))],
    "float8, channels": lambda: [float8(50, 100, (1, 100)), float8(7, 100, (1, 100))],
    "float8, blocks that do not divide": lambda: [float8(200, 200, (128, 128))],
    "float8, panels that share activations": lambda: [float8(1300, 320, (650, 160))],
    "int4, panels that take turns": lambda: [integers(1300, 384, 128, 4)],
    "int8, panels that take turns": lambda: [integers(1300, 320, 320, 8)],
    "int4, inputs of several blocks": lambda: [integers(20, 1152, 128, 4)],
    "int8, inputs of several blocks": lambda: [integers(20, 1415, 1415, 8)],
    "float8, inputs of several blocks": lambda: [float8(40, 1100, (1, 1100))],
    "float4": lambda: [float4(70, 96), float4(9, 96)],
    "float4, panels that take turns": lambda: [float4(1300, 320)],
    "float4, inputs of several blocks": lambda: [float4(40, 1120)],
}


def load(weights: Sequence[CodedWeight], kernel: CodeKernel | None = None) -> CodedLinear:
    method = CodedLinear(weights[0].shape[1], tuple(weight.shape[0] for weight in weights))
    for part, weight in enumerate(weights):
        method.load(part, weight, torch.randn(weight.shape[0]) if part == 0 else None)
    method.finish(kernel)
    return method


def takes(kernel: CodeKernel, weights: Sequence[CodedWeight]) -> bool:
    if kernel is not INTEGERS:
        return True
    weight = weights[0]
    inputs = weight.shape[1]
    if not isinstance(weight, IntegerWeight):
        return False
    group = inputs // weight.scales.shape[1]
    return group == inputs or group % kernel.step == 0


CALLS = [
    pytest.param(case, kernel, id=f"{case}, {kernel.name}")
    for case in CASES
    for kernel in KERNELS
    if takes(kernel, CASES[case]())
]


@pytest.mark.parametrize("case,kernel", CALLS)
def test_equals_the_dequantized_weights(case: str, kernel: CodeKernel) -> None:
    torch.manual_seed(0)
    weights = CASES[case]()
    method, dense = load(weights, kernel), torch.cat([weight.dequantized() for weight in weights]).double()
    x = torch.randn(max(ROWS), dense.shape[1])
    seen = x.bfloat16() if kernel is DOTS else x
    expected = seen.double() @ dense.T + method.bias().double()
    near = (1e-4 if kernel is INTEGERS else 2e-5) * expected.abs().max()
    whole = method.apply(x)
    for rows in ROWS:
        y = method.apply(x[:rows])
        assert (y.double() - expected[:rows]).abs().max() < near, rows
        assert torch.equal(y, whole[:rows]), "a row depends on its neighbours"


def compiled(method: ScaledInputLinear, x: torch.Tensor) -> torch.Tensor:
    """As the fused decoder multiplies."""
    y = torch.full((len(x), sum(method.out_features)), float("nan"))
    scratch = torch.full((method.scratch_bytes(len(x)),), 255, dtype=torch.uint8)
    addresses = x.data_ptr(), scratch.data_ptr(), y.data_ptr()
    any_linear(np.array(method.where()), *addresses, len(x), y.shape[1], x.shape[1], torch.get_num_threads())
    return y


@pytest.mark.parametrize("case,kernel", [call for call in CALLS if "order" not in str(call.values[0])])
def test_inputs_are_divided_by_whatever_brings_them_to_the_product(case: str, kernel: CodeKernel) -> None:
    """The bits of the product with inputs that were divided before, of one row and of many."""
    torch.manual_seed(0)
    divided_as_before(load(CASES[case](), kernel))


@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("inputs", [131, 320])
def test_inputs_of_floats_are_divided_alike(storage: torch.dtype, inputs: int) -> None:
    torch.manual_seed(0)
    method = StoredFloatLinear(inputs, (70,), storage)
    method.load(0, torch.randn(70, inputs).to(storage), torch.randn(70))
    method.finish()
    divided_as_before(method)


def divided_as_before(inner: CodedLinear | StoredFloatLinear) -> None:
    method = ScaledInputLinear(inner, torch.rand(inner.in_features) * 3 + 0.1)
    x = torch.randn(max(ROWS), inner.in_features)
    expected = method.apply(x)
    assert not torch.allclose(expected, inner.apply(x), rtol=0.1)
    for rows in ROWS:
        assert torch.equal(compiled(method, x[:rows]), expected[:rows]), rows


@pytest.mark.parametrize("case,kernel", CALLS)
def test_columns_are_the_dequantized_weights(case: str, kernel: CodeKernel) -> None:
    weights = CASES[case]()
    method, dense = load(weights, kernel), torch.cat([weight.dequantized() for weight in weights])
    inputs = dense.shape[1]
    pieces = [method.columns(first, min(first + 38, inputs)) for first in range(0, inputs, 38)]
    torch.testing.assert_close(torch.cat(pieces).T, dense, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_what_is_no_number_stays_in_its_row(kernel: CodeKernel) -> None:
    method = load([integers(48, 128, 64, 4)], kernel)
    x = torch.randn(20, 128)
    x[3, 7], x[11, 100], x[12, 5] = float("nan"), float("inf"), 1e-40
    y = method.apply(x)
    bad = torch.tensor([3, 11])
    assert not y[bad].isfinite().any()
    assert y[[row for row in range(20) if row not in bad]].isfinite().all()
    assert torch.equal(method.apply(torch.zeros(2, 128)), method.bias().expand(2, -1))


def test_every_float8_is_read_as_torch_does() -> None:
    codes = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)
    values = codes.view(torch.float8_e4m3fn)[:, None]
    method = load([Float8Weight(values=values, scales=torch.ones(1, 1), block=(len(codes), 1))])
    y = method.apply(torch.ones(1, 1)) - method.bias()
    torch.testing.assert_close(y[0], values[:, 0].float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "kernel", [kernel for kernel in KERNELS if kernel is not INTEGERS], ids=lambda kernel: kernel.name
)
def test_float4_has_the_bits_of_the_same_numbers_in_float8(kernel: CodeKernel) -> None:
    """Sums of the same products in the same order; the powers of two in between round nothing."""
    torch.manual_seed(0)
    weight = float4(71, 160)
    values = float4_values(weight.codes()).to(torch.float8_e4m3fn)
    scales = torch.exp2(weight.exponents.float() - 127)
    x, methods = torch.randn(max(ROWS), 160), []
    for stored in (weight, Float8Weight(values=values, scales=scales, block=(1, 32))):
        methods.append(CodedLinear(160, (71,)))
        methods[-1].load(0, stored, torch.linspace(-1, 1, 71))
        methods[-1].finish(kernel)
    for rows in ROWS:
        assert torch.equal(methods[0].apply(x[:rows]), methods[1].apply(x[:rows])), rows


@pytest.mark.parametrize(
    "kernel", [kernel for kernel in KERNELS if kernel is not INTEGERS], ids=lambda kernel: kernel.name
)
def test_every_float4_and_every_exponent(kernel: CodeKernel) -> None:
    """One input that is not zero picks a code and its scale, from the least to the largest that a float32 holds."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(253, 2)
    exponents = torch.arange(253, dtype=torch.uint8)[:, None]
    weight = Float4Weight(halves=codes[:, ::2] | codes[:, 1::2] << 4, exponents=exponents)
    method = CodedLinear(32, (253,))
    method.load(0, weight, None)
    method.finish(kernel)
    assert torch.equal(weight.codes(), codes)
    for rows in (1, 3, 130):
        found = method.apply(torch.eye(32).repeat(5, 1)[:rows])
        assert torch.equal(found, weight.dequantized().T.repeat(5, 1)[:rows])


def test_memory_is_the_codes_and_little_more() -> None:
    for weight, arithmetic in (
        (integers(512, 1024, 128, 4), 512 * 1024 * (0.5 + 2.5 / 128)),
        (integers(512, 1024, 1024, 8), 512 * 1024 + 512 * 4),
        (float8(512, 1024, (128, 128)), 512 * 1024 + 4 * 8 * 4),
        (float4(512, 1024), 512 * 1024 * (0.5 + 1 / 32)),
    ):
        assert load([weight]).weight_bytes() < 1.05 * arithmetic


NOTHING, BYTES, BOTH, MATRIX = "", "INTEGERS", "BFLOAT16 INTEGERS", "BFLOAT16 INTEGERS MATRIX"


@pytest.mark.parametrize(
    "has,kind,group,exact,kernel",
    [
        (NOTHING, INT4, 128, False, VECTORS),
        (BYTES, INT4, 128, False, INTEGERS),
        (BYTES, FLOAT8, 128, False, VECTORS),
        (BOTH, INT4, 128, False, DOTS),
        (BOTH, INT8, 128, True, INTEGERS),
        (BOTH, INT4, 32, True, SPLIT_DOTS),
        (BOTH, FLOAT8, 128, True, SPLIT_DOTS),
        (BOTH, FLOAT4, 32, False, DOTS),
        (BYTES, FLOAT4, 256, False, VECTORS),
        (MATRIX, INT4, 128, False, INTEGERS),
        (MATRIX, INT4, 32, False, DOTS),
        (MATRIX, FLOAT8, 128, False, DOTS),
    ],
)
def test_the_kernel_of_each_processor(
    monkeypatch: pytest.MonkeyPatch, has: str, kind: int, group: int, exact: bool, kernel: CodeKernel
) -> None:
    for name in ("BFLOAT16", "INTEGERS", "MATRIX"):
        monkeypatch.setattr(dots, f"HAS_{name}", name in has.split())
    assert choose_kernel(kind, group, 256, exact) is kernel


def test_groups_that_the_kernels_do_not_take() -> None:
    assert coded_form(integers(4, 48, 16, 4)) is None
    assert coded_form(integers(4, 48, 48, 4)) is not None


def test_a_wrong_shape_is_named() -> None:
    with pytest.raises(ValueError, match=r"part 0 .* weight \[4, 32\], the model needs \[4, 64\]"):
        CodedLinear(64, (4,)).load(0, integers(4, 32, 32, 4), None)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_the_compiled_step_takes_what_its_door_multiplies_here(kernel: CodeKernel) -> None:
    for ordered in (False, True):
        linear = CodedLinear(512, (40,))
        linear.load(0, integers(40, 512, 256, 8, ordered), None)
        linear.finish(kernel)
        assert linear.fits_any_linear == (not ordered)
