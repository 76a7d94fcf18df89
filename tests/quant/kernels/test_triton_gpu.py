"""The CUDA schemes on a CUDA device."""

from collections.abc import Callable

import pytest
import torch

from loraplex.quant.kernels.cuda.cast import cast_rows
from loraplex.quant.kernels.cuda.tiles import DENSE_ROWS
from loraplex.quant.linears.cuda_packed import CudaPackedLinear
from loraplex.quant.linears.cuda_scaled_float8 import CudaScaledFloat8Linear
from loraplex.quant.linears.scaled_products import multiplies_rows
from loraplex.quant.weights.weights import CodedWeight

from .weights import random_float8, random_integers

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
DTYPES = [torch.bfloat16, torch.float16]
TOLERANCE = {torch.bfloat16: 2**-7, torch.float16: 2**-10}
WEIGHTS: dict[str, Callable[[], CodedWeight]] = {
    "int4 g128": lambda: random_integers(4096, 4096, 4, 32),
    "int4 g32 odd": lambda: random_integers(1031, 1056, 4, 33),
    "int4 activation order": lambda: random_integers(896, 4864, 4, 38, ordered=False),
    "int8 per channel": lambda: random_integers(1024, 4097, 8, 1),
    "int8 g64": lambda: random_integers(129, 896, 8, 14),
    "float8 per channel": lambda: random_float8(1030, 2050, (1, 2050)),
    "float8 blocks": lambda: random_float8(1024, 4096, (128, 128)),
}


def load(weight: CodedWeight, dtype: torch.dtype, bias: torch.Tensor | None) -> CudaPackedLinear:
    method = CudaPackedLinear(weight.shape[1], (weight.shape[0],), dtype, CUDA)
    method.load(0, weight, bias)
    method.finish()
    return method


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", WEIGHTS)
def test_equals_the_definition_bit_for_bit_each_time(name: str, dtype: torch.dtype) -> None:
    weight = WEIGHTS[name]()
    bias = torch.randn(weight.shape[0]).to(dtype)
    method, dense = load(weight, dtype, bias), weight.dequantized().to(CUDA)
    assert torch.equal(method.columns(2, 70).T, dense[:, 2:70])
    for rows in (1, 2, 8, 9, 16, 17, 64, 65, 512):
        x = torch.randn(rows, weight.shape[1], device=CUDA).to(dtype)
        results = [method.apply(x) for _ in range(3)]
        wanted = x.double() @ (dense.to(dtype) if rows > DENSE_ROWS else dense).double().T + bias.to(CUDA).double()
        torch.testing.assert_close(results[0].double(), wanted, rtol=TOLERANCE[dtype], atol=2 * TOLERANCE[dtype])
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_a_captured_graph_replays_right_with_other_rows() -> None:
    weight = WEIGHTS["int4 g128"]()
    method, dense = load(weight, torch.bfloat16, None), weight.dequantized().to(CUDA).double()
    x = torch.randn(16, 4096, device=CUDA).bfloat16()
    method.apply(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = method.apply(x)
    for _ in range(3):
        x.copy_(torch.randn(16, 4096, device=CUDA))
        graph.replay()
        torch.testing.assert_close(y.double(), x.double() @ dense.T, rtol=2**-7, atol=2**-6)


def test_rows_cast_to_float8_and_their_scaled_product() -> None:
    weight = random_float8(512, 4096, (1, 4096))
    if not multiplies_rows(CUDA):
        pytest.skip("this device has no row-wise scaled product")
    method = CudaScaledFloat8Linear(4096, (512,), CUDA)
    method.load(0, weight, None)
    method.finish()
    for rows in (1, 17, 300):
        x = torch.randn(rows, 4096, device=CUDA).bfloat16()
        values, scales = cast_rows(x)
        largest = x.float().abs().amax(1, keepdim=True)
        # By a tensor: of a division by a number torch makes a product with its inverse on CUDA, a last place off.
        assert torch.equal(scales, largest / torch.full_like(largest, 448))
        assert torch.equal(values.float(), (x.float() * (1 / scales)).to(torch.float8_e4m3fn).float())
        product = (values.double() * scales.double()) @ weight.dequantized().to(CUDA).double().T
        torch.testing.assert_close(method.apply(x).double(), product, rtol=2**-6, atol=2**-6)
