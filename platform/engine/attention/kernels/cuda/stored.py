"""Keys and values of 8 bits as the cache stores them, to numbers and back (triton), on devices without float8 too."""

from typing import Final

import triton
import triton.language as tl

from loraplex.quant.kernels.cuda.decode import FLOAT8 as _FLOAT8_CODES
from loraplex.quant.kernels.cuda.decode import FLOAT8_HALF_CODE, decode
from loraplex.quant.kernels.cuda.decode import INTEGER8 as _INTEGER8_CODES

FLOAT: Final = tl.constexpr(0)
"""Any type that the device converts by itself."""
INTEGER8: Final = tl.constexpr(1)
E4M3: Final = tl.constexpr(2)
E5M2: Final = tl.constexpr(3)
NATIVE_E4M3: Final = tl.constexpr(4)
"""Bytes of 8-bit types; NATIVE_E4M3 those of E4M3 on a device that converts them by itself. As in launch.py."""
_NATIVE: Final = tl.constexpr(not triton.knobs.runtime.interpret)
HALF_CODES: Final = {
    INTEGER8.value: "{.reg .b32 x, y, a, o, n; mov.b32 a, 0x64646464; mov.b32 o, 0x3c003c00; mov.b32 n, 0xe480e480;"
    "xor.b32 x, $2, 0x80808080; prmt.b32 y, x, a, 0x4140; fma.rn.f16x2 $0, y, o, n;"
    "prmt.b32 y, x, a, 0x4342; fma.rn.f16x2 $1, y, o, n;}",
    E4M3.value: FLOAT8_HALF_CODE.value,
    E5M2.value: "{.reg .b32 z; mov.b32 z, 0; prmt.b32 $0, $2, z, 0x1404; prmt.b32 $1, $2, z, 0x3424;}",
    NATIVE_E4M3.value: "{.reg .b16 l, h; mov.b32 {l, h}, $2; cvt.rn.f16x2.e4m3x2 $0, l; cvt.rn.f16x2.e4m3x2 $1, h;}",
}
"""PTX by format: four bytes to two pairs of float16. Integers are put after the first ten bits of 1024, 128 too large,
and rid of 1152."""
_HALF_CODES: Final = tl.constexpr(("", *HALF_CODES.values()))
_ONE_AND_A_HALF: Final = tl.constexpr(12582912.0)
"""1.5 * 2^23: added to a number of up to 22 bits, its last bits are that number rounded to nearest even."""


@triton.jit
def widen(stored: tl.tensor, dtype: tl.constexpr, FORMAT: tl.constexpr) -> tl.tensor:
    """The numbers in dtype; those of 8 bits exactly, and of E4M3 1/256 of them."""
    if FORMAT == INTEGER8:
        result = decode(stored ^ 128, tl.full((1, 1), 128, tl.uint8), dtype, _INTEGER8_CODES)
    elif FORMAT == E4M3:
        result = decode(stored, stored, dtype, _FLOAT8_CODES)
    elif FORMAT == E5M2:
        result = stored.to(tl.float8e5, bitcast=True).to(tl.float16).to(dtype)
    elif FORMAT == NATIVE_E4M3:
        result = stored.to(tl.float8e4nv, bitcast=True).to(tl.float16).to(dtype)
    else:
        result = stored.to(dtype)
    return result


@triton.jit
def widen_bytes(stored: tl.tensor, dtype: tl.constexpr, FORMAT: tl.constexpr) -> tl.tensor:
    """As `widen`, four bytes at a time where dtype is float16; called impure, so that it is done in the layout in which
    bytes come from memory."""
    if not _NATIVE or dtype != tl.float16:
        return widen(stored, dtype, FORMAT)
    CODE: tl.constexpr = _HALF_CODES[FORMAT]
    bits = tl.inline_asm_elementwise(CODE, "=r,=r,r", [stored], tl.uint16, is_pure=False, pack=4)
    return bits.to(tl.float16, bitcast=True)


@triton.jit
def encode(values: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """float32 within what FORMAT can hold -> bytes, rounded to nearest even."""
    if FORMAT == INTEGER8:
        codes = (values + _ONE_AND_A_HALF).to(tl.uint32, bitcast=True)
    elif FORMAT == E4M3:
        codes = _encode_float(values, 3, 7)
    else:
        codes = _encode_float(values, 2, 15)
    return (codes & 255).to(tl.uint8)


@triton.jit
def _encode_float(values: tl.tensor, MANTISSA: tl.constexpr, BIAS: tl.constexpr) -> tl.tensor:
    """Subnormal numbers are multiples of one step; all else has the bits of float32, cut off and counted anew."""
    SHIFT: tl.constexpr = 23 - MANTISSA
    STEPS: tl.constexpr = 2.0 ** (BIAS - 1 + MANTISSA)
    LEAST_NORMAL: tl.constexpr = 2.0 ** (1 - BIAS)
    bits = values.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    even = ((magnitude + (((1 << (SHIFT - 1)) - 1) + (magnitude >> SHIFT & 1))) >> SHIFT) - ((127 - BIAS) << MANTISSA)
    steps = (tl.abs(values) * STEPS + _ONE_AND_A_HALF).to(tl.uint32, bitcast=True)
    return tl.where(tl.abs(values) < LEAST_NORMAL, steps & 255, even) | (bits >> 24 & 128)


@triton.jit
def scale_above(largest: tl.tensor, LARGEST: tl.constexpr) -> tl.tensor:
    """float32: the least bfloat16 with which numbers up to `largest` fit into ±LARGEST; NaN for NaN."""
    exact = tl.div_rn(largest, LARGEST)
    bits = (exact.to(tl.uint32, bitcast=True) + 0xFFFF) & 0xFFFF0000
    return tl.where(exact == exact, bits.to(tl.float32, bitcast=True), exact)


@triton.jit
def unpack_scales(pairs: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """uint32, two bfloat16 each -> the first and the second in float32."""
    return (pairs << 16).to(tl.float32, bitcast=True), (pairs & 0xFFFF0000).to(tl.float32, bitcast=True)
