import pytest
import torch

from loraplex.quant.calibrate.awq import clip, group_products, scales_of, search_scales
from loraplex.quant.weights.rounding import IntegerGrid, round_to_integers

from .inputs import outlier_case, output_error, statistics

GRID = IntegerGrid(bits=4, symmetric=False)


@pytest.mark.parametrize("seed", range(3))
def test_scales_protect_outlier_channels(seed: int) -> None:
    weight, x = outlier_case(seed)
    seen = statistics(x)
    scales = search_scales([weight[:16], weight[16:]], seen.rows, seen.magnitudes, GRID, 32)
    assert scales[::13].min() > scales.median(), "what is large is scaled up"
    nearest = output_error(weight, GRID.rounded(weight, 32), x)
    scaled = output_error(weight, GRID.rounded(weight * scales, 32) / scales, x)
    assert scaled < 0.7 * nearest


@pytest.mark.parametrize("seed", range(3))
def test_clipping_leaves_less_error_on_activations(seed: int) -> None:
    weight, x = outlier_case(seed)
    weight = weight**3  # long tails, which stretch a group's range
    nearest = output_error(weight, GRID.rounded(weight, 32), x)
    clipped = clip(weight, group_products(statistics(x).rows, 32), GRID)
    assert output_error(weight, round_to_integers(clipped, GRID, 32).dequantized(), x) < nearest
    assert (clipped.abs() <= weight.abs()).all()


def test_weights_that_round_to_themselves_are_not_touched() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 16, (4, 2, 8), generator=generator).float()
    values[..., 0], values[..., 1] = 0, 15
    weight = ((values - 7) * 0.5).reshape(4, 16)
    x = torch.randn(64, 16, generator=generator)
    seen = statistics(x)
    assert torch.equal(search_scales([weight], seen.rows, seen.magnitudes, GRID, 8), torch.ones(16))
    assert torch.equal(clip(weight, group_products(seen.rows, 8), GRID), weight)


def test_scales_of_inputs_that_were_never_seen() -> None:
    assert torch.equal(scales_of(torch.zeros(4), 0.5), torch.ones(4))
    scales = scales_of(torch.tensor([0.0, 1.0, 4.0]), 0.5)
    assert scales[0] == scales[1] and torch.allclose(scales[2], 2 * scales[1])
    assert torch.equal(scales_of(torch.tensor([0.0, 1.0, 4.0]), 0.0), torch.ones(3))
