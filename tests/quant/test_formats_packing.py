"""Each layout read back: words written by hand, and round trips over shapes, groups and odd sizes."""

import numpy as np
import pytest
import torch

from loraplex.quant.config.layouts import AwqLayout, Float8Layout, GptqLayout, IntegerLayout, Layout
from loraplex.quant.formats.read import read_weight, tensor_specs
from loraplex.quant.formats.specification import Linear
from loraplex.quant.weights.weights import Float8Weight, IntegerWeight
from tests.quant.made_formats import Made, Make, awq, compressed, float8, gptq

DTYPES = {
    torch.int32: "I32",
    torch.int64: "I64",
    torch.int8: "I8",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float8_e4m3fn: "F8_E4M3",
}


def signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def int32(*rows: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([[signed(word) for word in row] for row in rows], dtype=torch.int32)


def test_awq_words_written_by_hand() -> None:
    """0x75316420 holds 0 to 7: nibbles from the lowest are outputs 0 2 4 6 1 3 5 7."""
    tensors = {
        "qweight": int32((0x75316420,), (0xFDB9ECA8,)),
        "qzeros": int32((0x00000000,)),
        "scales": torch.ones(1, 8, dtype=torch.float16),
    }
    weight = read_weight(AwqLayout(group_size=2, has_zeros=True), Linear("x", 8, 2), tensors)
    assert weight.dequantized().tolist() == [[output, output + 8] for output in range(8)]
    tensors["qzeros"] = int32((0x75316420,))
    tensors["scales"] = 2 * torch.arange(1, 9, dtype=torch.float16)[None]
    weight = read_weight(AwqLayout(group_size=2, has_zeros=True), Linear("x", 8, 2), tensors)
    assert weight.dequantized().tolist() == [[0, 16 * (output + 1)] for output in range(8)]


@pytest.mark.parametrize(("version", "stored"), [(1, 0x76543210), (0, 0x87654321)])
def test_gptq_words_written_by_hand(version: int, stored: int) -> None:
    """Nibbles from the lowest: neighbouring inputs in qweight, outputs in qzeros; format gptq lacks one."""
    tensors = {
        "qweight": int32((0x76543210, 0xFEDCBA98, 0, 0, 0, 0, 0, 0xFFFFFFFF)),
        "qzeros": int32((stored,)),
        "scales": torch.ones(1, 8, dtype=torch.float16),
        "g_idx": torch.zeros(8, dtype=torch.int32),
    }
    layout = GptqLayout(bits=4, group_size=8, symmetric=False, ordered=False, zero_offset=version)
    weight = read_weight(layout, Linear("x", 8, 8), tensors).dequantized()
    assert weight[0].tolist() == [-1, 0, 1, 2, 3, 4, 5, 6]
    assert weight[1].tolist() == [6, 7, 8, 9, 10, 11, 12, 13]
    assert weight[2].tolist() == [-3] * 8
    assert weight[7].tolist() == [7] * 8


def gptq_zeros(bits: int, *words: int) -> list[int]:
    """As read of an asymmetric linear of one group in format gptq."""
    outputs = len(words) * 32 // bits
    tensors = {
        "qweight": torch.zeros(8 * bits // 32, outputs, dtype=torch.int32),
        "qzeros": int32(words),
        "scales": torch.ones(1, outputs),
    }
    layout = GptqLayout(bits=bits, group_size=8, symmetric=False, ordered=False, zero_offset=1)
    weight = read_weight(layout, Linear("x", outputs, 8), tensors)
    assert isinstance(weight, IntegerWeight)
    return weight.zeros[:, 0].tolist()


def test_gptq_zero_points_of_0_borrow_from_the_next() -> None:
    """GPTQModel takes 0x11111111 off whole words."""
    assert gptq_zeros(4, 0x80050F00 - 0x11111111) == [0, 0, 15, 0, 5, 0, 0, 8]
    assert gptq_zeros(4, 0x08765432 - 0x11111111 & 0xFFFFFFFF, 0x12345678) == [2, 3, 4, 5, 6, 7, 8, 0, *range(9, 1, -1)]
    assert gptq_zeros(8, 0x8000FF00 - 0x01010101) == [0, 255, 0, 128]
    assert gptq_zeros(8, 0x00800080 - 0x01010101 & 0xFFFFFFFF) == [128, 0, 128, 0]


@pytest.mark.parametrize(("bits", "word"), [(4, 0xFFFFFFFF), (4, 0xFF654321), (8, 0xFFFF807F)])
def test_gptq_zero_points_that_autogptq_lost_are_refused(bits: int, word: int) -> None:
    with pytest.raises(ValueError, match=r"^x\.qzeros has 1 words that end in (15, 15|255, 255): a zero point of 0"):
        gptq_zeros(bits, 0x10101010, word)


def test_gptq_bytes_and_activation_order_written_by_hand() -> None:
    tensors = {
        "qweight": int32((0xFF807F00, 0x01020304, 0, 0)),
        "qzeros": int32((0x7F7F7F7F,), (0x7F7F7F7F,)),
        "scales": torch.tensor([[1, 1, 1, 1], [10, 10, 10, 10]], dtype=torch.float16),
        "g_idx": torch.tensor([1, 0, 0, 1], dtype=torch.int32),
    }
    layout = GptqLayout(bits=8, group_size=2, symmetric=True, ordered=True, zero_offset=1)
    weight = read_weight(layout, Linear("x", 4, 4), tensors).dequantized()
    assert weight[0].tolist() == [-1280, -1, 0, 1270]
    assert weight[1].tolist() == [-1240, -125, -126, -1270]


def test_compressed_tensors_words_written_by_hand() -> None:
    """Signed and moved up by 8; zero points are packed along the outputs."""
    tensors = {
        "weight_packed": int32((0x76543210, 0x0000000F), (0xFEDCBA98, 0x00000007)),
        "weight_shape": torch.tensor([2, 9]),
        "weight_scale": torch.tensor([[1.0], [2.0]]),
        "weight_zero_point": int32((0x000000A9,)),
    }
    layout = IntegerLayout(bits=4, group_size=None, one_scale=False, symmetric=False, ordered=False, packed=True)
    weight = read_weight(layout, Linear("x", 2, 9), tensors).dequantized()
    assert weight[0].tolist() == [-9, -8, -7, -6, -5, -4, -3, -2, 6]
    assert weight[1].tolist() == [-4, -2, 0, 2, 4, 6, 8, 10, -6]


def check(layout: Layout, make: Make, outputs: int, inputs: int, seed: int = 0) -> None:
    """What is read stands for the weights that were packed, and fits what the layout announces."""
    made = make(np.random.default_rng(seed), outputs, inputs)
    linear = Linear("x", outputs, inputs)
    specs = tensor_specs(layout, linear, made.tensors.keys())
    for suffix, tensor in made.tensors.items():
        shape = tuple(tensor.shape)
        assert specs[suffix].misshaped(shape) is None and specs[suffix].mistyped(DTYPES[tensor.dtype], shape) is None
    assert {suffix for suffix, spec in specs.items() if spec.required} <= made.tensors.keys()
    weight = read_weight(
        layout, linear, {suffix: made.tensors[suffix] for suffix in made.tensors.keys() & specs.keys()}
    )
    _check_form(weight, made)
    torch.testing.assert_close(weight.dequantized(), made.weight, rtol=1e-6, atol=0)


def _check_form(weight: IntegerWeight | Float8Weight, made: Made) -> None:
    assert weight.shape == tuple(made.weight.shape)
    assert weight.scales.dtype == torch.float32 and weight.scales.is_contiguous() and weight.values.is_contiguous()
    if isinstance(weight, IntegerWeight):
        assert weight.values.dtype == weight.zeros.dtype == torch.uint8
        assert weight.zeros.shape == weight.scales.shape and weight.zeros.is_contiguous()
        assert int(weight.values.max()) < 1 << weight.bits
        lowest = 1 << (weight.bits - 1) if made.integers.min() < 0 else 0
        assert np.array_equal(weight.values.int().numpy() - lowest, made.integers)


@pytest.mark.parametrize("seed", range(6))
def test_awq_round_trips(seed: int) -> None:
    random = np.random.default_rng(seed)
    size, groups = int(random.choice([1, 3, 8, 16, 50])), int(random.integers(1, 5))
    outputs, inputs = 8 * int(random.integers(1, 9)), size * groups
    for zeros in (True, False):
        check(AwqLayout(group_size=size, has_zeros=zeros), awq(size, zeros), outputs, inputs, seed)
        check(AwqLayout(group_size=None, has_zeros=zeros), awq(-1, zeros), outputs, inputs, seed)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bits", [4, 8])
def test_gptq_round_trips(bits: int, seed: int) -> None:
    random, each = np.random.default_rng(seed), 32 // bits
    size, groups = each * int(random.integers(1, 5)), int(random.integers(1, 5))
    outputs, inputs = each * int(random.integers(1, 9)), size * groups
    for ordered in (False, True):
        for symmetric in (False, True):
            for version in (1, 2):
                layout = GptqLayout(
                    bits=bits, group_size=size, symmetric=symmetric, ordered=ordered, zero_offset=2 - version
                )
                check(layout, gptq(bits, size, ordered, symmetric, version), outputs, inputs, seed)
    whole = GptqLayout(bits=bits, group_size=None, symmetric=True, ordered=True, zero_offset=1)
    check(whole, gptq(bits, -1, ordered=True), outputs, inputs, seed)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_integers_round_trip(bits: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    size, groups, outputs = (int(number) for number in random.integers(1, 20, 3))
    for packed in (True, False):
        for symmetric in (True, False):
            for ordered in (True, False):
                layout = IntegerLayout(
                    bits=bits, group_size=size, one_scale=False, symmetric=symmetric, ordered=ordered, packed=packed
                )
                check(layout, compressed(bits, size, packed, symmetric, ordered), outputs, size * groups, seed)
            plain = compressed(bits, size, packed, symmetric, packed_zeros=False)
            unordered = IntegerLayout(
                bits=bits, group_size=size, one_scale=False, symmetric=symmetric, ordered=False, packed=packed
            )
            check(unordered, plain, outputs, size * groups, seed)
            for whole in ("channel", "tensor"):
                layout = IntegerLayout(
                    bits=bits,
                    group_size=None,
                    one_scale=whole == "tensor",
                    symmetric=symmetric,
                    ordered=False,
                    packed=packed,
                )
                check(layout, compressed(bits, whole, packed, symmetric), outputs, size * groups, seed)


@pytest.mark.parametrize("seed", range(4))
def test_float8_round_trips(seed: int) -> None:
    random = np.random.default_rng(seed)
    outputs, inputs, rows, columns = (int(number) for number in random.integers(1, 40, 4))
    for name in ("weight_scale", "weight_scale_inv"):
        names = ("weight_scale", "weight_scale_inv")
        check(Float8Layout(block=(1, None), scale_names=names), float8((1, None), name), outputs, inputs, seed)
        check(Float8Layout(block=(rows, columns), scale_names=names), float8((rows, columns), name), outputs, inputs)
        for shape in ((), (1,), (1, 1)):
            layout = Float8Layout(block=(None, None), scale_names=names)
            check(layout, float8((None, None), name, shape, static=True), outputs, inputs, seed)
    check(Float8Layout(block=(1, columns), scale_names=names), float8((1, columns)), outputs, 3 * columns, seed)


def test_scales_of_powers_of_two_are_read() -> None:
    tensors = {
        "weight": torch.ones(2, 4).to(torch.float8_e4m3fn),
        "weight_scale_inv": torch.tensor([[0.25], [4.0]]).to(torch.float8_e8m0fnu),
    }
    layout = Float8Layout(block=(1, 4), scale_names=("weight_scale_inv",))
    specs = tensor_specs(layout, Linear("x", 2, 4), tensors.keys())
    assert specs["weight_scale_inv"].mistyped("F8_E8M0", (2, 1)) is None
    assert read_weight(layout, Linear("x", 2, 4), tensors).dequantized().tolist() == [[0.25] * 4, [4.0] * 4]


def test_groups_in_order_need_no_order() -> None:
    layout = GptqLayout(bits=4, group_size=8, symmetric=True, ordered=True, zero_offset=1)
    made = gptq(4, 8)(np.random.default_rng(0), 8, 16)
    assert isinstance(weight := read_weight(layout, Linear("x", 8, 16), made.tensors), IntegerWeight)
    assert weight.group_of is None


def test_symmetric_zero_points_stored_the_other_way_are_the_middle_all_the_same() -> None:
    """Files exist that say gptq and store zero points as gptq_v2 does."""
    layout = GptqLayout(bits=4, group_size=8, symmetric=True, ordered=False, zero_offset=1)
    check(layout, gptq(4, 8, offset=0), 16, 24)


def test_negative_scales_are_taken() -> None:
    made = awq(8)(np.random.default_rng(0), 8, 16)
    made.tensors["scales"] *= -1
    weight = read_weight(AwqLayout(group_size=8, has_zeros=True), Linear("x", 8, 16), made.tensors)
    torch.testing.assert_close(weight.dequantized(), -made.weight)
