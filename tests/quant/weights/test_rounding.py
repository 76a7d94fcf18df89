import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loraplex.quant.weights.rounding import IntegerGrid, check_group_size, round_to_float8, round_to_integers

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SLACK = {torch.float32: 1e-5, torch.bfloat16: 2**-4, torch.float16: 2**-7}
"""Of a scale: what 15 steps of a scale rounded to the dtype add up to."""


@st.composite
def weights(draw: st.DrawFn) -> tuple[torch.Tensor, int | None]:
    """A weight [out, in], of zeros, tiny and large values too, and a group size that divides it."""
    outputs, groups, size = (draw(st.integers(1, most)) for most in (5, 3, 24))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    weight = torch.randn(outputs, groups, size, generator=generator)
    weight = weight * 10 ** torch.randint(-3, 3, (outputs, groups, 1), generator=generator)
    weight = weight * (torch.rand(outputs, groups, 1, generator=generator) > 0.2)
    shift = draw(st.sampled_from((0.0, 0.0, 5.0, -5.0)))
    return (weight + shift * (weight != 0)).reshape(outputs, -1), draw(st.sampled_from((size, None)))


@given(weights(), st.sampled_from((4, 8)), st.booleans(), st.sampled_from(DTYPES))
def test_integers_are_off_by_half_a_scale_at_most(
    case: tuple[torch.Tensor, int | None], bits: int, symmetric: bool, dtype: torch.dtype
) -> None:
    weight, size = case
    rounded = round_to_integers(weight, IntegerGrid(bits=bits, symmetric=symmetric, scale_dtype=dtype), size)
    scales = rounded.scales.repeat_interleave(weight.shape[1] // rounded.scales.shape[1], 1)
    slack = SLACK[dtype] * (1 if bits == 4 else 16)
    error = (rounded.dequantized() - weight).abs()
    assert (error <= scales * (0.5 + slack)).all()
    assert torch.equal(rounded.scales.to(dtype).float(), rounded.scales), "a checkpoint can keep them as they are"
    assert int(rounded.values.max()) < 2**bits and int(rounded.zeros.max()) < 2**bits
    assert not rounded.dequantized()[weight == 0].any(), "zero stays zero"
    assert not symmetric or (rounded.zeros == 2 ** (bits - 1)).all()


@given(st.sampled_from((4, 8)), st.booleans(), st.integers(0, 1000))
def test_weights_that_are_integers_already_come_out_as_they_are(bits: int, symmetric: bool, seed: int) -> None:
    generator, largest = torch.Generator().manual_seed(seed), 2**bits - 1
    values = torch.randint(0, largest + 1, (3, 2, 8), generator=generator)
    values[:, :, 0], values[:, :, 1] = 0, largest
    zeros = (
        torch.full((3, 2), 2 ** (bits - 1)) if symmetric else torch.randint(0, largest + 1, (3, 2), generator=generator)
    )
    scales = 2.0 ** torch.randint(-6, 3, (3, 2), generator=generator)
    weight = (scales[..., None] * (values - zeros[..., None])).reshape(3, 16)
    rounded = round_to_integers(weight, IntegerGrid(bits=bits, symmetric=symmetric), 8)
    assert torch.equal(rounded.dequantized(), weight)
    assert torch.equal(rounded.values.reshape(3, 2, 8).long(), values)


def test_integers_agree_with_torch() -> None:
    weight = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
    rounded = round_to_integers(weight, IntegerGrid(bits=8, symmetric=True), None)
    reference = torch.fake_quantize_per_channel_affine(weight, rounded.scales[:, 0], torch.zeros(6).int(), 0, -128, 127)
    assert torch.equal(rounded.dequantized(), reference)


@given(weights(), st.sampled_from(DTYPES))
def test_float8_is_off_by_a_sixteenth_at_most(case: tuple[torch.Tensor, int | None], dtype: torch.dtype) -> None:
    weight = case[0]
    rounded = round_to_float8(weight, dtype)
    error = (rounded.dequantized() - weight).abs()
    smallest = rounded.scales * 2.0**-10
    assert (error <= torch.maximum(weight.abs() / 16 * (1 + SLACK[dtype]), smallest) + weight.abs() * 2**-8).all()
    assert torch.equal(rounded.scales.to(dtype).float(), rounded.scales)
    assert rounded.dequantized().isfinite().all()


def test_float8_values_come_out_as_they_are() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    numbers = every[every.isfinite()].repeat(2, 1) * torch.tensor([[0.25], [8.0]])
    assert torch.equal(round_to_float8(numbers).dequantized(), numbers)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_no_numbers_are_refused(broken: float) -> None:
    weight = torch.ones(2, 8)
    weight[1, 3] = broken
    with pytest.raises(ValueError, match="NaN or infinity"):
        round_to_integers(weight, IntegerGrid(bits=4, symmetric=False), 4)
    with pytest.raises(ValueError, match="NaN or infinity"):
        round_to_float8(weight)


def test_a_group_size_that_does_not_divide_names_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"128 does not divide the 96 inputs of a linear; choose 16 or 32$"):
        check_group_size(128, 96)
    with pytest.raises(ValueError, match=r"64 does not divide the 96 inputs of a linear; choose 16$"):
        check_group_size(64, 96, (96, 80))
    with pytest.raises(ValueError, match=r"64 does not divide the 30 inputs of a linear; choose 6$"):
        check_group_size(64, 30, (30, 36))
    with pytest.raises(ValueError, match="1 or more"):
        check_group_size(0, 96)
