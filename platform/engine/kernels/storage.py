"""What the elements of an array stand for, and the code that brings sixteen of them to float32 lanes and back.

    float32         as it is
    uint16, int16   the bits of bfloat16 and of float16
    int8            whole numbers from -127 to 127
    uint8           the bits of float8_e4m3fn, taken as 2^-8 of their value: so they are float16 but for a shift
    E5M2            the bits of float8_e5m2, the high byte of a float16; a record, for want of another type of 8 bits

Values are rounded to nearest even; those of 8 bits beyond their largest number become that number.
"""

from collections.abc import Sequence
from typing import Any, Final

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, config, types

LANES: Final = 16
FLOAT: Final = ir.FloatType()
VECTOR: Final = ir.VectorType(FLOAT, LANES)
INTEGERS: Final = ir.VectorType(ir.IntType(32), LANES)
SHORTS: Final = ir.VectorType(ir.IntType(16), LANES)
HALVES: Final = ir.VectorType(ir.HalfType(), LANES)
BYTES: Final = ir.VectorType(ir.IntType(8), LANES)
TWICE_BYTES: Final = ir.VectorType(ir.IntType(8), 2 * LANES)

_features: Final = config.CPU_FEATURES or llvmlite.binding.get_host_cpu_features().flatten()
HAS_HALVES: Final = "+f16c" in _features or "+sse2" not in _features
"""Whether the processor turns float16 into float32: all but old x86 do."""

E5M2: Final = np.dtype([("e5m2", np.uint8)])
_E5M2: Final = numba.from_dtype(E5M2)
_STORED: Final = {
    types.float32: VECTOR,
    types.uint16: SHORTS,
    types.int16: HALVES,
    types.int8: BYTES,
    types.uint8: BYTES,
    _E5M2: BYTES,
}
LIMITS: Final = {types.int8: 127.0, types.uint8: 448.0 / 256, _E5M2: 57344.0}
"""The largest number that 8 bits hold."""


def stored_type(dtype: Any) -> Any:
    """Sixteen elements as they lie in memory."""
    return _STORED[dtype]


def alignment(dtype: Any) -> int:
    """Bytes of an element."""
    return {VECTOR: 4, SHORTS: 2, HALVES: 2, BYTES: 1}[_STORED[dtype]]


def pairs(dtype: Any) -> bool:
    """Whether two vectors at a time are widened faster than one and one."""
    return HAS_HALVES and dtype in (types.uint8, _E5M2)


def widen_pair(builder: Any, dtype: Any, stored: Any) -> list[Any]:
    """TWICE_BYTES -> two VECTORs"""
    halves = _float8_halves(builder, stored, 3 if dtype == types.uint8 else 2, 2 * LANES)
    parts = [ir.Constant(INTEGERS, list(range(first, first + LANES))) for first in (0, LANES)]
    undefined = ir.Constant(halves.type, ir.Undefined)
    return [builder.fpext(builder.shuffle_vector(halves, undefined, part), VECTOR) for part in parts]


def widen(builder: Any, dtype: Any, stored: Any) -> Any:
    """stored_type(dtype) -> VECTOR, exact"""
    if dtype == types.float32:
        return stored
    if dtype == types.int16:
        return builder.fpext(stored, VECTOR)
    if dtype == types.uint16:
        return builder.bitcast(builder.shl(builder.zext(stored, INTEGERS), integers(16)), VECTOR)
    if dtype == types.int8:
        return builder.sitofp(builder.sext(stored, INTEGERS), VECTOR)
    mantissa = 3 if dtype == types.uint8 else 2
    if HAS_HALVES:
        return builder.fpext(_float8_halves(builder, stored, mantissa, LANES), VECTOR)
    return _float8_by_product(builder, stored, mantissa)


def narrow(builder: Any, dtype: Any, value: Any) -> Any:
    """VECTOR -> stored_type(dtype)"""
    if dtype == types.float32:
        return value
    if dtype == types.int16:
        return builder.fptrunc(value, HALVES)
    if dtype == types.uint16:
        return _bfloat16_bits(builder, value)
    bounded = _bounded(builder, value, LIMITS[dtype])
    if dtype == types.int8:
        whole = call(builder, "llvm.rint.v16f32", VECTOR, (bounded,), ())
        return builder.trunc(builder.fptosi(whole, INTEGERS), BYTES)
    if dtype == types.uint8:
        return _float8_bits(builder, builder.fmul(bounded, floats(256.0)), bias=7, mantissa=3)
    return _float8_bits(builder, bounded, bias=15, mantissa=2)


def _float8_halves(builder: Any, stored: Any, mantissa: int, lanes: int) -> Any:
    """The bits at their places in float16. Where the exponent is shorter than there, its first bit becomes 0."""
    shorts = ir.VectorType(ir.IntType(16), lanes)
    bits = builder.shl(builder.sext(stored, shorts), ir.Constant(shorts, [10 - mantissa] * lanes))
    if mantissa == 3:
        bits = builder.and_(bits, ir.Constant(shorts, [0xBFFF] * lanes))
    return builder.bitcast(bits, ir.VectorType(ir.HalfType(), lanes))


def _float8_by_product(builder: Any, stored: Any, mantissa: int) -> Any:
    """The bits at their places in a float32, whose exponents begin 2^112 lower than those of a float16. Exact for
    subnormal numbers too, though slow for those: not for processors that know float16."""
    shifted = builder.shl(builder.sext(stored, INTEGERS), integers(23 - mantissa))
    mask = 0x80000000 | (0x7F << (23 - mantissa))
    return builder.fmul(builder.bitcast(builder.and_(shifted, integers(mask)), VECTOR), floats(2.0**112))


def _bfloat16_bits(builder: Any, value: Any) -> Any:
    bits = builder.bitcast(value, INTEGERS)
    odd = builder.and_(builder.lshr(bits, integers(16)), integers(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, integers(0x7FFF))), integers(16))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(is_nan, integers(0x7FC0), rounded), SHORTS)


def _bounded(builder: Any, value: Any, limit: float) -> Any:
    """NaN becomes -limit: no 8 bits are to say it, the scale does."""
    value = builder.select(builder.fcmp_ordered(">", value, floats(-limit)), value, floats(-limit))
    return builder.select(builder.fcmp_ordered("<", value, floats(limit)), value, floats(limit))


def _float8_bits(builder: Any, value: Any, bias: int, mantissa: int) -> Any:
    """Of values that float8 holds. A number below its normal ones is rounded by adding a power of two whose last bit
    is worth the smallest step; the others by half a step in integers, which carries into the exponent."""
    bits = builder.bitcast(value, INTEGERS)
    magnitude, dropped = builder.and_(bits, integers(0x7FFFFFFF)), 23 - mantissa
    odd = builder.and_(builder.lshr(magnitude, integers(dropped)), integers(1))
    offset = ((bias - 127) << 23) + (1 << (dropped - 1)) - 1
    normal = builder.lshr(builder.add(builder.add(magnitude, odd), integers(offset)), integers(dropped))
    power = floats(2.0 ** (24 - bias - mantissa))
    sum_bits = builder.bitcast(builder.fadd(builder.bitcast(magnitude, VECTOR), power), INTEGERS)
    small = builder.sub(sum_bits, builder.bitcast(power, INTEGERS))
    is_small = builder.icmp_unsigned("<", magnitude, integers((128 - bias) << 23))
    sign = builder.and_(builder.lshr(bits, integers(24)), integers(0x80))
    return builder.trunc(builder.or_(builder.select(is_small, small, normal), sign), BYTES)


def call(builder: Any, name: str, answer: Any, arguments: Sequence[Any], flags: tuple[str, ...]) -> Any:
    """A call of an LLVM intrinsic."""
    function_type = ir.FunctionType(answer, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, arguments, fastmath=flags)


def floats(value: float) -> Any:
    return ir.Constant(VECTOR, [value] * LANES)


def integers(value: int) -> Any:
    return ir.Constant(INTEGERS, [value] * LANES)
