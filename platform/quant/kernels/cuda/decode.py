"""From codes to numbers of x's dtype, in registers (triton): every result is exact, scales are applied elsewhere."""

from typing import Final

import triton
import triton.language as tl

_NATIVE: Final = tl.constexpr(not triton.knobs.runtime.interpret)
"""False in the interpreter, which has no bfloat16 arithmetic and knows no machine code: the first is done in fp32, and
the formulas of `decode` stand for the second."""
INTEGER4: Final = tl.constexpr(0)
INTEGER8: Final = tl.constexpr(1)
FLOAT8: Final = tl.constexpr(2)
FLOAT4: Final = tl.constexpr(3)
"""As in layout.py."""
FLOAT8_FACTOR: Final = tl.constexpr(256.0)
"""What a scale of FLOAT8 is multiplied by: `decode` gives that much less."""
FLOAT4_EXPONENT: Final = tl.constexpr(2)
"""What is added to the exponent of a scale of FLOAT4: `decode` gives a quarter, so that all scales are normal numbers.
"""


@triton.constexpr_function
def has_half_bytes(FORMAT: int) -> bool:
    """Whether a byte has two codes."""
    return FORMAT in (INTEGER4.value, FLOAT4.value)


def integer4_code(kind: str, one: int, above: int) -> str:
    """PTX: four bytes and twice two negative zero points to two pairs of low and two of high numbers. The upper byte
    `above` before a code makes a number of type `kind` of it, 128 (bfloat16) or 1024 (float16) more than the code."""
    pairs = [
        f"prmt.b32 x, {half}, a, {spread}; fma.rn.{kind} ${place}, x, o, {zeros};"
        for place, (half, spread, zeros) in enumerate(
            [("l", "0x4140", "$5"), ("l", "0x4342", "$6"), ("h", "0x4140", "$5"), ("h", "0x4342", "$6")]
        )
    ]
    halves = "and.b32 l, $4, 0x0f0f0f0f; shr.u32 h, $4, 4; and.b32 h, h, 0x0f0f0f0f;"
    return f"{{.reg .b32 l, h, x, a, o; mov.b32 a, {above:#x}; mov.b32 o, {one:#x}; {halves} {' '.join(pairs)}}}"


def integer8_code() -> str:
    """PTX: four bytes and four negative zero points to two pairs of bfloat16, by float32: 2^23 more than the code."""
    numbers = [
        f"prmt.b32 x, $2, a, {0x7440 + place:#x}; mov.b32 n{place}, x; mov.b32 z{place}, ${3 + place};"
        f"add.f32 n{place}, n{place}, z{place};"
        for place in range(4)
    ]
    pairs = "cvt.rn.bf16x2.f32 $0, n1, n0; cvt.rn.bf16x2.f32 $1, n3, n2;"
    return f"{{.reg .b32 x, a; .reg .f32 n<4>, z<4>; mov.b32 a, 0x4b000000; {' '.join(numbers)} {pairs}}}"


def integer8_half_code() -> str:
    """PTX: four bytes and twice two negative zero points to two pairs of float16, 1024 more than the code."""
    pairs = [
        f"prmt.b32 x, $2, a, {spread}; fma.rn.f16x2 ${place}, x, o, ${3 + place};"
        for place, spread in enumerate(("0x4140", "0x4342"))
    ]
    return f"{{.reg .b32 x, a, o; mov.b32 a, 0x64646464; mov.b32 o, 0x3c003c00; {' '.join(pairs)}}}"


def float8_code(shift: int, magnitudes: int, end: str) -> str:
    """PTX: four bytes to two pairs of numbers with the same bits, `shift` places to the right of a 16-bit number's
    first; `end` makes up for an exponent that counts from elsewhere."""
    pairs = [
        f"prmt.b32 x, $2, z, {spread}; and.b32 s, x, 0x80008000; shr.u32 x, x, {shift};"
        f"and.b32 x, x, {magnitudes:#x}; or.b32 x, x, s; {end.format(place)}"
        for place, spread in enumerate(("0x1404", "0x3424"))
    ]
    return f"{{.reg .b32 x, s, z, f, n; mov.b32 z, 0; mov.b32 f, 0x77807780; mov.b32 n, 0x80008000; {' '.join(pairs)}}}"


def float4_code(kind: str, shift: int, magnitudes: int, factor: int) -> str:
    """PTX: four bytes to two pairs of low and two of high numbers of type `kind`, with the same bits `shift` places to
    the right of a 16-bit number's first; `factor` makes up for an exponent that counts from 1."""
    pairs = [
        f"prmt.b32 x, $4, z, {spread}; {first} and.b32 s, x, 0x80008000; shr.u32 x, x, {shift};"
        f"and.b32 x, x, {magnitudes:#x}; or.b32 x, x, s; fma.rn.{kind} ${place}, x, f, n;"
        for place, (first, spread) in enumerate(
            [("shl.b32 x, x, 4;", "0x1404"), ("shl.b32 x, x, 4;", "0x3424"), ("", "0x1404"), ("", "0x3424")]
        )
    ]
    numbers = f"mov.b32 z, 0; mov.b32 f, {factor:#x}; mov.b32 n, 0x80008000;"
    return f"{{.reg .b32 x, s, z, f, n; {numbers} {' '.join(pairs)}}}"


INTEGER4_CODE: Final = tl.constexpr(integer4_code("bf16x2", 0x3F803F80, 0x43434343))
INTEGER4_HALF_CODE: Final = tl.constexpr(integer4_code("f16x2", 0x3C003C00, 0x64646464))
INTEGER8_CODE: Final = tl.constexpr(integer8_code())
INTEGER8_HALF_CODE: Final = tl.constexpr(integer8_half_code())
FLOAT8_CODE: Final = tl.constexpr(float8_code(4, 0x07F007F0, "fma.rn.bf16x2 ${}, x, f, n;"))
"""Exponents count from 7 there, from 127 in bfloat16: 2^120, of which FLOAT8_FACTOR is 2^8."""
FLOAT8_HALF_CODE: Final = tl.constexpr(float8_code(1, 0x3F803F80, "mov.b32 ${}, x;"))
FLOAT4_CODE: Final = tl.constexpr(float4_code("bf16x2", 6, 0x01C001C0, 0x7D807D80))
"""2^124: exponents count from 1 there, from 127 in bfloat16, and a quarter is wanted."""
FLOAT4_HALF_CODE: Final = tl.constexpr(float4_code("f16x2", 3, 0x0E000E00, 0x6C006C00))


@triton.jit
def decode_halves(
    codes: tl.tensor, zeros: tl.tensor, dtype: tl.constexpr, FORMAT: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """INTEGER4 and FLOAT4: codes uint8 [outputs, bytes], zeros uint8 [outputs, 1] -> what the low and the high four
    bits are.

    Called impure, so that it is done in the layout in which bytes come from memory: else operands of a product may be
    read two bytes at a time. In a loop whose products go into one sum triton 3.6 fails on that for sm_100.
    """
    if not _NATIVE:
        low, high = decode(codes & 15, zeros, dtype, FORMAT), decode(codes >> 4, zeros, dtype, FORMAT)
    elif FORMAT == FLOAT4:
        FLOAT_CODE: tl.constexpr = FLOAT4_HALF_CODE if dtype == tl.float16 else FLOAT4_CODE
        low, high = tl.inline_asm_elementwise(
            FLOAT_CODE, "=r,=r,=r,=r,r", [codes], (tl.uint16, tl.uint16), is_pure=False, pack=4
        )
        low, high = low.to(dtype, bitcast=True), high.to(dtype, bitcast=True)
    else:
        CODE: tl.constexpr = INTEGER4_HALF_CODE if dtype == tl.float16 else INTEGER4_CODE
        low, high = tl.inline_asm_elementwise(
            CODE, "=r,=r,=r,=r,r,r,r", [codes, _negative(zeros, dtype)], (tl.uint16, tl.uint16), is_pure=False, pack=4
        )
        low, high = low.to(dtype, bitcast=True), high.to(dtype, bitcast=True)
    return low, high


@triton.jit
def decode_bytes(codes: tl.tensor, zeros: tl.tensor, dtype: tl.constexpr, FORMAT: tl.constexpr) -> tl.tensor:
    """As `decode`, four at a time; else as `decode_halves`."""
    if not _NATIVE:
        return decode(codes, zeros, dtype, FORMAT)
    if FORMAT == FLOAT8:
        FLOAT_CODE: tl.constexpr = FLOAT8_HALF_CODE if dtype == tl.float16 else FLOAT8_CODE
        bits = tl.inline_asm_elementwise(FLOAT_CODE, "=r,=r,r", [codes], tl.uint16, is_pure=False, pack=4)
    elif dtype == tl.float16:
        negative = _negative(zeros, dtype)
        bits = tl.inline_asm_elementwise(
            INTEGER8_HALF_CODE, "=r,=r,r,r,r", [codes, negative], tl.uint16, is_pure=False, pack=4
        )
    else:
        negative = zeros.to(tl.uint32) | 0xCB000000
        bits = tl.inline_asm_elementwise(
            INTEGER8_CODE, "=r,=r,r,r,r,r,r", [codes, negative], tl.uint16, is_pure=False, pack=4
        )
    return bits.to(dtype, bitcast=True)


@triton.jit
def _negative(zeros: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """-1024 - zeros in float16, -128 - zeros in bfloat16."""
    return (zeros.to(tl.uint16) | (0xE400 if dtype == tl.float16 else 0xC300)).to(dtype, bitcast=True)


@triton.jit
def decode(codes: tl.tensor, zeros: tl.tensor, dtype: tl.constexpr, FORMAT: tl.constexpr) -> tl.tensor:
    """codes uint8 [outputs, inputs], below 16 with INTEGER4 and FLOAT4; zeros uint8 [outputs, 1]. FLOAT8: value / 256;
    FLOAT4: value / 4."""
    if FORMAT == FLOAT8:
        result = _decode_float8(codes).to(dtype)
    elif FORMAT == FLOAT4:
        result = (_float4_bits(codes).to(tl.float32) * 4096).to(dtype)
    elif dtype == tl.float16:
        result = _above_1024(codes) - _above_1024(zeros)
    elif FORMAT == INTEGER4:
        result = _subtract(_above_128(codes), _above_128(zeros))
    else:
        result = (_above_8388608(codes) - _above_8388608(zeros)).to(dtype)
    return result


@triton.jit
def power_of_two(exponents: tl.tensor, place: tl.tensor) -> tl.tensor:
    """float32, what FLOAT4 is scaled by: int32 exponents has four, of which this is the one at `place`."""
    return (((exponents >> 8 * place & 0xFF) + FLOAT4_EXPONENT) << 23).to(tl.float32, bitcast=True)


@triton.jit
def multiply_tiles(a: tl.tensor, b: tl.tensor, total: tl.tensor) -> tl.tensor:
    """total + a b for tiles of one float dtype, sums in fp32."""
    if _NATIVE:
        total = tl.dot(a, b, total, input_precision="ieee")
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


@triton.jit
def _float4_bits(codes: tl.tensor) -> tl.tensor:
    """float4_e2m1fn / 2 ** 14 in float16: the same bits, whose exponent there counts from 15 and not from 1."""
    bits = codes.to(tl.uint16)
    return ((bits & 8) << 12 | (bits & 7) << 9).to(tl.float16, bitcast=True)
