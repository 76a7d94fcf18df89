"""Norms, activations and the vector exponential against torch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numba import njit

from loraplex.engine.kernels.activations import CODES, activate, gate_by_sigmoid
from loraplex.engine.kernels.norm import add_rms_norm, layer_norm, rms_norm, rms_norm_reference
from loraplex.engine.kernels.silu import silu_multiply, silu_multiply_reference
from loraplex.engine.kernels.vector import exp, load, store

SHAPES = [(1, 64), (3, 896), (80, 512), (5, 24)]
"""One token, few, enough for all threads, and a size that is no multiple of 16."""
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=TOLERANCE[expected.dtype], rtol=TOLERANCE[expected.dtype])


@every_dtype
@every_shape
def test_rms_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
    assert_close(rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5))


@every_dtype
@every_shape
def test_add_rms_norm_adds_in_place(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
    expected = residual + x
    normed = add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, expected)
    assert_close(normed, rms_norm_reference(expected, weight, 1e-6))


@every_dtype
@every_shape
def test_layer_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    size = -(-shape[1] // 16) * 16
    x, weight, bias = (torch.randn(*rows, size).to(dtype) for rows in ((shape[0],), (), ()))
    x += 3
    expected = F.layer_norm(x.double(), (size,), weight.double(), bias.double(), 1e-5).to(dtype)
    assert_close(layer_norm(x, weight, bias, 1e-5), expected)


@every_dtype
@pytest.mark.parametrize("activation", CODES)
@pytest.mark.parametrize("is_gated", [False, True], ids=["plain", "gated"])
def test_activations(activation: str, is_gated: bool, dtype: torch.dtype) -> None:
    exact = {"silu": F.silu, "relu": F.relu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
    for tokens in (1, 80):
        x = (torch.randn(tokens, 512) * 4).to(dtype)
        gate, up = x.double().chunk(2, dim=1) if is_gated else (x.double(), torch.ones(1))
        found = activate(x, CODES[activation], is_gated)
        assert_close(found, (exact[activation](gate) * up).to(dtype))
        assert torch.equal(activate(x[:1], CODES[activation], is_gated), found[:1])


@every_dtype
def test_gate_by_sigmoid(dtype: torch.dtype) -> None:
    for tokens in (1, 80):
        x, gates = torch.randn(tokens, 512).to(dtype), (torch.randn(tokens, 512) * 40).to(dtype)
        gates[0, :4] = torch.tensor([0.0, 200.0, -200.0, -87.0])
        exact, row = (x.double() * torch.sigmoid(gates.double())).to(dtype), gate_by_sigmoid(x[:1].clone(), gates[:1])
        found = gate_by_sigmoid(x, gates)
        assert found is x and torch.equal(found[:1], row)
        assert_close(found, exact)


@every_dtype
@every_shape
def test_silu_multiply(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = (torch.randn(shape[0], 2 * shape[1]) * 4).to(dtype)
    assert_close(silu_multiply(gate_up), silu_multiply_reference(gate_up))


def test_silu_multiply_at_the_extremes() -> None:
    gate = torch.tensor([-1e30, -200, -89, -88, -20, 0, 20, 88, 200, 1e30, float("nan")] + [1.0] * 5)
    gate_up = torch.cat((gate, torch.ones(16)))[None]
    torch.testing.assert_close(silu_multiply(gate_up), silu_multiply_reference(gate_up), equal_nan=True)


@every_dtype
def test_a_row_does_not_depend_on_its_neighbours(dtype: torch.dtype) -> None:
    x, weight = torch.randn(80, 512).to(dtype), torch.randn(512).to(dtype)
    assert torch.equal(rms_norm(x, weight, 1e-5)[7:8], rms_norm(x[7:8], weight, 1e-5))
    assert torch.equal(silu_multiply(x)[7:8], silu_multiply(x[7:8]))


@njit  # type: ignore[untyped-decorator]
def _exp_all(x, output):  # type: ignore[no-untyped-def]
    for at in range(0, len(x), 16):
        store(output, at, exp(load(x, at)))


def test_exp() -> None:
    x = np.linspace(-87, 88, 16000, dtype=np.float32)
    output = np.empty_like(x)
    _exp_all(x, output)
    np.testing.assert_allclose(output, np.exp(x.astype(np.float64)), rtol=3e-7)
    special = np.array([-np.inf, -1e30, -87.5, np.nan] * 4, dtype=np.float32)
    _exp_all(special, special)
    np.testing.assert_array_equal(special[:4], [0, 0, 0, np.nan])


@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, torch.uint16), (torch.float16, torch.int16)], ids=str)
def test_storage_rounds_as_torch_does(dtype: torch.dtype, bits: torch.dtype) -> None:
    x = torch.cat((torch.randn(1 << 14), torch.tensor([float("nan"), -1e30, 80.0, 0.0] * 4)))
    output = torch.empty(len(x), dtype=dtype)
    exponent = x.exp()
    _exp_all(x.numpy(), output.view(bits).numpy())
    exact = torch.empty_like(x)
    _exp_all(x.numpy(), exact.numpy())
    expected = exact.to(dtype)
    finite = ~expected.isnan()
    assert torch.equal(output[finite], expected[finite]) and torch.equal(output.isnan(), exponent.isnan())
