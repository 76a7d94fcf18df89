"""The machine code that decodes four bytes at a time, executed here: all bytes with all zero points."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from loraplex.quant.kernels.cuda import decode
from loraplex.quant.weights.weights import float4_values

from . import ptx

BYTES = np.arange(256, dtype=np.uint32)
DTYPES = [torch.bfloat16, torch.float16]


def four_bytes(shift: int) -> npt.NDArray[np.uint32]:
    """[256] registers: in each place of a register every byte, with others beside it."""
    result = np.zeros(256, np.uint32)
    for place in range(4):
        result |= byte_of(place, shift) << np.uint32(8 * place)
    return result


def byte_of(place: int, shift: int) -> npt.NDArray[np.uint32]:
    return (BYTES * (2 * place + 1) + 77 * place + shift) & np.uint32(255)


def numbers(registers: list[ptx.Register], dtype: torch.dtype) -> npt.NDArray[np.float64]:
    """[4, ...]: the elements of two registers, first to last, as triton takes them."""
    return np.stack([half for register in registers for half in ptx.from_pair(register, dtype)])


def pair(first: ptx.Register, second: ptx.Register) -> ptx.Register:
    return first | second << np.uint32(16)


def negative(zeros: npt.NDArray[np.uint32], dtype: torch.dtype) -> npt.NDArray[np.uint32]:
    """As decode._negative."""
    return zeros | np.uint32(0xE400 if dtype == torch.float16 else 0xC300)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_four_bits(dtype: torch.dtype) -> None:
    """Zero points of other rows beside it, too: four elements may be of several."""
    code = decode.INTEGER4_HALF_CODE if dtype == torch.float16 else decode.INTEGER4_CODE
    for zero in range(17):
        zeros = [np.full(1, (zero + place) % 17, np.uint32) for place in range(4)]
        inputs = [pair(*(negative(z, dtype) for z in zeros[half : half + 2])) for half in (0, 2)]
        found = ptx.run(code.value, 4, four_bytes(zero), *inputs)
        low, high = numbers(found[:2], dtype), numbers(found[2:], dtype)
        for place in range(4):
            codes = byte_of(place, zero).astype(np.float64)
            assert np.array_equal(low[place], codes % 16 - zeros[place])
            assert np.array_equal(high[place], codes // 16 - zeros[place])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_eight_bits(dtype: torch.dtype) -> None:
    for zero in range(256):
        zeros = [np.full(1, (zero + 31 * place) % 256, np.uint32) for place in range(4)]
        if dtype == torch.float16:
            inputs = [pair(*(negative(z, dtype) for z in zeros[half : half + 2])) for half in (0, 2)]
            found = ptx.run(decode.INTEGER8_HALF_CODE.value, 2, four_bytes(zero), *inputs)
        else:
            inputs = [z | np.uint32(0xCB000000) for z in zeros]
            found = ptx.run(decode.INTEGER8_CODE.value, 2, four_bytes(zero), *inputs)
        values = numbers(found, dtype)
        for place in range(4):
            wanted = byte_of(place, zero).astype(np.float64) - zeros[place]
            assert np.array_equal(values[place], wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_float8(dtype: torch.dtype) -> None:
    """Subnormal numbers and both zeros, too; NaN is none of the codes."""
    code = decode.FLOAT8_HALF_CODE if dtype == torch.float16 else decode.FLOAT8_CODE
    values = numbers(ptx.run(code.value, 2, four_bytes(0)), dtype)
    for place in range(4):
        codes = torch.from_numpy(byte_of(place, 0).astype(np.uint8))
        wanted = codes.view(torch.float8_e4m3fn).double().numpy() / decode.FLOAT8_FACTOR.value
        held = ~np.isnan(wanted)
        assert held.sum() == 254 and np.array_equal(values[place][held], wanted[held])
        assert np.array_equal(np.signbit(values[place][held]), np.signbit(wanted[held]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_float4(dtype: torch.dtype) -> None:
    """Both zeros, too."""
    code = decode.FLOAT4_HALF_CODE if dtype == torch.float16 else decode.FLOAT4_CODE
    found = ptx.run(code.value, 4, four_bytes(0))
    for values, shift in ((numbers(found[:2], dtype), 0), (numbers(found[2:], dtype), 4)):
        for place in range(4):
            codes = torch.from_numpy((byte_of(place, 0) >> shift & 15).astype(np.uint8))
            wanted = float4_values(codes).double().numpy() / 2**decode.FLOAT4_EXPONENT.value
            assert len(np.unique(codes)) == 16 and np.array_equal(values[place], wanted)
            assert np.array_equal(np.signbit(values[place]), np.signbit(wanted))
