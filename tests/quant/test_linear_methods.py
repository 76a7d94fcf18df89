"""Every scheme against float64: parts, biases, odd shapes, row counts around each tile size."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from loraplex.quant.config.config import QuantizationConfig, parse_quantization
from loraplex.quant.kernels.instructions.dots import HAS_BFLOAT16
from loraplex.quant.kernels.instructions.tile import PANEL
from loraplex.quant.kernels.instructions.vectors import features
from loraplex.quant.kernels.layouts.panels import pack_weight
from loraplex.quant.kernels.panel_linear import panel_linear, scratch_size
from loraplex.quant.linears.scheme import LinearMethod
from loraplex.quant.linears.stored_float import StoredFloatLinear
from loraplex.quant.linears.torch_linear import TorchLinear
from loraplex.quant.schemes import cpu as cpu_scheme
from loraplex.quant.schemes.arithmetic import ARITHMETIC, arithmetic_words
from loraplex.quant.schemes.choose import choose_scheme

SHAPES = [(96, (64,)), (896, (896, 128, 128)), (129, (1, 31, 33)), (1, (5,)), (600, (40, 7))]
STORAGES = [torch.bfloat16, torch.float16, torch.float32]
ROWS = [1, 2, 3, 5, 7, 8, 9, 12, 13, 16, 24, 25, 37]


def read(x: torch.Tensor, storage: torch.dtype) -> torch.Tensor:
    """What linears see of x, float64: dot products of bfloat16 have both factors in it."""
    return (x.bfloat16() if HAS_BFLOAT16 and storage == torch.bfloat16 else x).double()


def load_random(method: LinearMethod, storage: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Fill every part (each second one without a bias) and return weight and bias in float64."""
    generator = torch.Generator().manual_seed(seed)
    weights, biases = [], []
    for part, rows in enumerate(method.out_features):
        weight = torch.randn(rows, method.in_features, generator=generator).to(storage)
        bias = torch.randn(rows, generator=generator).to(storage) if part % 2 == 0 else None
        method.load(part, weight, bias)
        weights.append(weight)
        biases.append(torch.zeros(rows) if bias is None else bias)
    method.finish()
    return torch.cat(weights).double(), torch.cat([bias.double() for bias in biases])


@pytest.mark.parametrize("storage", STORAGES, ids=str)
@pytest.mark.parametrize("in_features,out_features", SHAPES)
def test_stored_float_equals_float64(in_features: int, out_features: tuple[int, ...], storage: torch.dtype) -> None:
    method = StoredFloatLinear(in_features, out_features, storage)
    weight, bias = load_random(method, storage)
    for rows in ROWS:
        x = torch.randn(rows, in_features)
        expected = read(x, storage) @ weight.T + bias
        torch.testing.assert_close(method.apply(x).double(), expected, rtol=1e-5, atol=1e-5 * in_features**0.5)


@pytest.mark.parametrize("storage", STORAGES, ids=str)
@pytest.mark.parametrize("in_features,out_features", SHAPES)
def test_columns_are_the_stored_weights(in_features: int, out_features: tuple[int, ...], storage: torch.dtype) -> None:
    methods: list[LinearMethod] = [
        StoredFloatLinear(in_features, out_features, storage),
        TorchLinear(in_features, out_features, storage),
    ]
    for method in methods:
        weight, bias = load_random(method, storage)
        pieces = [method.columns(first, min(first + 38, in_features)) for first in range(0, in_features, 38)]
        assert torch.equal(torch.cat(pieces).T.double(), weight), type(method)
        assert torch.equal(method.bias().double(), bias)


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_a_row_is_the_same_bits_whatever_its_neighbours(storage: torch.dtype) -> None:
    method = StoredFloatLinear(515, (70,), storage)
    load_random(method, storage)
    x = torch.randn(40, 515)
    alone = torch.cat([method.apply(row[None]) for row in x])
    for rows in range(1, 41):
        assert torch.equal(method.apply(x[:rows]), alone[:rows]), rows
    assert torch.equal(method.apply(x.flip(0)).flip(0), alone)


def test_memory_left_from_before_does_not_matter() -> None:
    """The allocator hands out used memory as scratch and output: fill it with NaN first."""
    method = StoredFloatLinear(131, (37,), torch.bfloat16)
    weight, bias = load_random(method, torch.bfloat16)
    x = torch.randn(5, 131)
    for _ in range(20):
        poison = [torch.full((size,), float("nan")) for size in (5 * 37, 17 * 132, 4096)]
        del poison
        expected = read(x, torch.bfloat16) @ weight.T + bias
        torch.testing.assert_close(method.apply(x).double(), expected, rtol=1e-5, atol=1e-4)


def test_not_a_number_stays_in_its_row() -> None:
    method = StoredFloatLinear(64, (48,), torch.bfloat16)
    load_random(method, torch.bfloat16)
    x = torch.randn(14, 64)
    x[3, 7] = float("nan")
    y = method.apply(x)
    assert y[3].isnan().all()
    assert y[torch.arange(14) != 3].isfinite().all()


def test_no_rows() -> None:
    method = StoredFloatLinear(64, (48,), torch.bfloat16)
    load_random(method, torch.bfloat16)
    assert method.apply(torch.empty(0, 64)).shape == (0, 48)


def test_a_strided_input_is_read_right() -> None:
    method = StoredFloatLinear(64, (48,), torch.float32)
    weight, bias = load_random(method, torch.float32)
    x = torch.randn(6, 128)[:, ::2]
    torch.testing.assert_close(method.apply(x).double(), x.double() @ weight.T + bias, rtol=1e-5, atol=1e-4)


def test_torch_linear_equals_float64() -> None:
    method = TorchLinear(96, (64, 33), torch.float32)
    weight, bias = load_random(method, torch.float32)
    x = torch.randn(3, 96)
    torch.testing.assert_close(method.apply(x).double(), x.double() @ weight.T + bias, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("storage,element", [(torch.bfloat16, 2), (torch.float16, 2), (torch.float32, 4)], ids=str)
def test_weight_bytes(storage: torch.dtype, element: int) -> None:
    method = StoredFloatLinear(128, (64, 64), storage)
    load_random(method, storage)
    assert method.weight_bytes() == 128 * 128 * element + 128 * 4


def test_a_wrong_shape_is_named() -> None:
    with pytest.raises(ValueError, match=r"part 1 .* weight \[3, 8\], the model needs \[4, 8\]"):
        TorchLinear(8, (4, 4), torch.float32).load(1, torch.zeros(3, 8), None)
    with pytest.raises(ValueError, match=r"part 0 .* bias \[3\]"):
        TorchLinear(8, (4, 4), torch.float32).load(0, torch.zeros(4, 8), torch.zeros(3))


def test_choice_names_its_reason() -> None:
    choice = choose_scheme(torch.device("cpu"), torch.bfloat16)
    assert isinstance(choice.create(8, (4,)), StoredFloatLinear)
    assert choice.compute_dtype == torch.float32
    assert choice.reason.startswith("bfloat16 weights, float32 arithmetic")
    assert ("dot products" in choice.reason) == HAS_BFLOAT16
    assert isinstance(choose_scheme(torch.device("meta"), torch.float16).create(8, (4,)), TorchLinear)


AWQ, FP8 = (
    parse_quantization({"quantization_config": said})
    for said in (
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True},
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
    )
)


@pytest.mark.parametrize(
    ("has", "storage", "quantization", "words"),
    [
        ((True, True), torch.bfloat16, AWQ, "linears of bfloat16 activations by dot products"),
        ((True, True), torch.float32, AWQ, "arithmetic, linears by dot products"),
        ((True, True), torch.float32, None, ""),
        ((False, True), torch.bfloat16, AWQ, "linears of 4- and 8-bit integers by dot products"),
        ((False, True), torch.bfloat16, FP8, ""),
        ((False, True), torch.bfloat16, None, ""),
        ((False, False), torch.bfloat16, AWQ, ""),
    ],
)
def test_the_reason_says_what_is_multiplied_by_dot_products(
    has: tuple[bool, bool],
    storage: torch.dtype,
    quantization: QuantizationConfig | None,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, there in zip(("HAS_BFLOAT16", "HAS_INTEGERS"), has, strict=True):
        monkeypatch.setattr(cpu_scheme, name, there)
    reason = choose_scheme(torch.device("cpu"), storage, quantization).reason
    assert words in reason and bool(words) == ("dot products" in reason)


@pytest.mark.parametrize("has", [True, False])
def test_float16_on_a_cpu_that_multiplies_bfloat16_alone_says_so(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_scheme, "HAS_BFLOAT16", has)
    cpu = torch.device("cpu")
    told = {dtype for dtype in (torch.bfloat16, torch.float16) if "--dtype" in choose_scheme(cpu, dtype, AWQ).reason}
    assert told == ({torch.float16} if has else set())


def test_the_arithmetic_has_a_name() -> None:
    assert arithmetic_words(False, False, False, "AVX-512") == "float32 vectors"
    assert arithmetic_words(False, True, True, "AVX2") == "dot products of words in AVX2"
    both = arithmetic_words(True, True, False, "matrix registers (AMX)")
    assert both == "dot products of bfloat16 and bytes in matrix registers (AMX)"
    assert ("bfloat16" in ARITHMETIC) == HAS_BFLOAT16


@pytest.mark.skipif(not HAS_BFLOAT16, reason="this CPU has no dot products of bfloat16")
@pytest.mark.parametrize("in_features,out_features", SHAPES)
def test_dot_products_and_fp32_agree(in_features: int, out_features: tuple[int, ...]) -> None:
    """Both kernels read their own panels of one weight; rows go past a stripe, inputs past a block."""
    weight = torch.randn(sum(out_features), in_features).bfloat16()
    bits = weight.view(torch.uint16).numpy()
    for rows in (1, 300):
        x = torch.randn(rows, in_features)
        for for_dots in (True, False):
            panels = pack_weight(bits, for_dots=for_dots)
            expected = (x.bfloat16() if for_dots else x).double() @ weight.double().T
            y = torch.full((rows, len(weight)), float("nan"))
            scratch = torch.full((scratch_size(rows, in_features),), float("nan"))
            bias = np.zeros(len(weight) + PANEL, np.float32)
            size = rows, len(weight), in_features
            panel_linear(panels, bias.ctypes.data, x.data_ptr(), 0, scratch.data_ptr(), y.data_ptr(), *size, 2)
            torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5 * in_features**0.5)


NARROW = """
import torch
from tests.quant.linears import test_coded
from loraplex.quant.kernels.instructions import vectors
from loraplex.quant.linears.stored_float import StoredFloatLinear
assert vectors.LANES == 8, vectors.LANES
for storage in (torch.bfloat16, torch.float16, torch.float32):
    method = StoredFloatLinear(131, (37,), storage)
    weight = torch.randn(37, 131).to(storage)
    method.load(0, weight, None)
    method.finish()
    for rows in range(1, 10):
        x = torch.randn(rows, 131)
        torch.testing.assert_close(method.apply(x).double(), x.double() @ weight.double().T, rtol=1e-5, atol=1e-4)
for call in test_coded.CALLS:
    test_coded.test_equals_the_dequantized_weights(*call.values)
"""


@pytest.mark.skipif("+avx2" not in features, reason="this CPU has no AVX2")
def test_narrower_vectors(tmp_path: os.PathLike[str]) -> None:
    """The same kernels compiled as on a CPU with AVX2 only."""
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+f16c,+sse4.2,+popcnt",
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    subprocess.run([sys.executable, "-c", NARROW], env=environment, check=True, timeout=300)
