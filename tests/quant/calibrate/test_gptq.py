import pytest
import torch

from loraplex.quant.calibrate.gptq import round_with_hessian
from loraplex.quant.weights.rounding import IntegerGrid, round_to_integers

from .inputs import outlier_case, output_error, statistics

GRID = IntegerGrid(bits=4, symmetric=True)


@pytest.mark.parametrize("activation_order", [False, True])
@pytest.mark.parametrize("group_size", [16, 64, 192])
def test_later_columns_make_up_for_earlier_ones(group_size: int, activation_order: bool) -> None:
    weight, x = outlier_case(group_size, inputs=192)
    nearest = output_error(weight, GRID.rounded(weight, group_size), x)
    hessian = statistics(x, with_hessian=True).hessian
    rounded = round_with_hessian(weight, hessian, GRID, group_size, activation_order=activation_order)
    assert output_error(weight, rounded.dequantized(), x) < 0.8 * nearest
    assert rounded.scales.shape == (48, 192 // group_size) and rounded.group_of is None


def test_inputs_that_go_their_own_ways_are_rounded_to_nearest() -> None:
    weight, _ = outlier_case()
    hessian = torch.diag(torch.rand(64, generator=torch.Generator().manual_seed(1)) + 0.1)
    for activation_order in (False, True):
        rounded = round_with_hessian(weight, hessian, GRID, 32, activation_order=activation_order)
        assert torch.equal(rounded.dequantized(), round_to_integers(weight, GRID, 32).dequantized())


def test_one_column_at_a_time_as_the_formula_says() -> None:
    """Against the definition: after each column, the rest is the least-squares answer given what is rounded."""
    weight, x = outlier_case(inputs=8, rows=64)
    hessian = statistics(x, with_hessian=True).hessian
    damped = hessian.double() + 0.01 * hessian.diagonal().mean() * torch.eye(8)
    rounded = round_with_hessian(weight, hessian, GRID, 8).dequantized().double()
    scales = GRID.fit(weight.reshape(-1, 1, 8))[0].double()
    for column in range(8):
        done = (rounded - weight.double())[:, :column]
        # least over the rest of (e H e'): rest = -done H[done, rest] H[rest, rest]^-1
        rest = -done @ damped[:column, column:] @ damped[column:, column:].inverse()
        target = weight[:, column].double() + rest[:, 0]
        expected = scales[:, 0] * (target / scales[:, 0]).round().clamp(-8, 7)
        near_half = ((target / scales[:, 0]) % 1 - 0.5).abs() < 1e-3
        assert torch.allclose(rounded[:, column][~near_half], expected[~near_half])


def test_an_input_that_was_never_seen_is_rounded_to_nearest() -> None:
    weight, x = outlier_case()
    x[:, 5] = 0
    rounded = round_with_hessian(weight, statistics(x, with_hessian=True).hessian, GRID, 64).dequantized()
    assert torch.equal(rounded[:, 5], GRID.rounded(weight, 64)[:, 5])


def test_what_cannot_be_rounded_is_refused() -> None:
    weight, x = outlier_case()
    hessian = statistics(x, with_hessian=True).hessian
    with pytest.raises(ValueError, match="48 does not divide the 64 inputs"):
        round_with_hessian(weight, hessian, GRID, 48)
    with pytest.raises(ValueError, match="no inverse"):
        round_with_hessian(weight, -hessian, GRID, 32)
    weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        round_with_hessian(weight, hessian, GRID, 32)
