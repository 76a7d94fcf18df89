"""From codes to numbers of x's dtype, in registers (triton): every result is exact, scales are applied elsewhere."""

from typing import Final

import triton
import triton.language as tl

_NATIVE: Final = tl.constexpr(not triton.knobs.runtime.interpret)
"""False in the interpreter, which has no bfloat16 arithmetic: it is then done in fp32."""
INTEGER4: Final = tl.constexpr(0)
INTEGER8: Final = tl.constexpr(1)
FLOAT8: Final = tl.constexpr(2)
"""As in layout.py."""
FLOAT8_FACTOR: Final = tl.constexpr(256.0)
"""What a scale of FLOAT8 is multiplied by: `decode` gives that much less."""


@triton.jit
def decode(codes: tl.tensor, zeros: tl.tensor, dtype: tl.constexpr, FORMAT: tl.constexpr) -> tl.tensor:
    """codes uint8 [outputs, inputs], below 16 with INTEGER4; zeros uint8 [outputs, 1]. FLOAT8: value / 256."""
    if FORMAT == FLOAT8:
        result = _decode_float8(codes).to(dtype)
    elif dtype == tl.float16:
        result = _above_1024(codes) - _above_1024(zeros)
    elif FORMAT == INTEGER4:
        result = _subtract(_above_128(codes), _above_128(zeros))
    else:
        result = (_above_8388608(codes) - _above_8388608(zeros)).to(dtype)
    return result


@triton.jit
def multiply_tiles(a: tl.tensor, b: tl.tensor, total: tl.tensor) -> tl.tensor:
    """total + a b for tiles of one 16-bit dtype, sums in fp32."""
    if _NATIVE:
        total = tl.dot(a, b, total)
    else:
        total = tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    return total


@triton.jit
def _above_1024(codes: tl.tensor) -> tl.tensor:
    """1024 + codes in float16, whose last ten bits are that sum's."""
    return (codes.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True)


@triton.jit
def _above_128(codes: tl.tensor) -> tl.tensor:
    """128 + codes in bfloat16, for codes below 128."""
    return (codes.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True)


@triton.jit
def _above_8388608(codes: tl.tensor) -> tl.tensor:
    """2 ** 23 + codes in float32."""
    return (codes.to(tl.uint32) | 0x4B000000).to(tl.float32, bitcast=True)


@triton.jit
def _subtract(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a - b if _NATIVE else (a.to(tl.float32) - b.to(tl.float32)).to(a.dtype)


@triton.jit
def _decode_float8(codes: tl.tensor) -> tl.tensor:
    """float8_e4m3fn / 256 in float16: the same bits, whose exponent there counts from 15 and not from 7. Holds for
    subnormal values too, and needs no instruction that older devices lack."""
    bits = codes.to(tl.uint16)
    return ((bits & 0x80) << 8 | (bits & 0x7F) << 7).to(tl.float16, bitcast=True)
