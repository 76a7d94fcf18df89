"""e^x and tanh of sixteen lanes, as LLVM code that vector.py's functions are made of."""

import math
from typing import Any

from .storage import INTEGERS, VECTOR, call, floats, integers


def exp_lanes(builder: Any, x: Any) -> Any:
    """2^n e^r with n the nearest integer to x / ln 2; a Taylor polynomial of degree 6 on |r| <= ln 2 / 2."""
    vanishes = builder.fcmp_ordered("<", x, floats(-87.0))
    bounded = builder.select(builder.fcmp_ordered(">=", x, floats(-87.0)), x, floats(-87.0))
    n, power_of_two = _nearest_power(builder, bounded)
    r = _remainder(builder, x, n)
    power = multiply_add_lanes(builder, _exp_slope(builder, r), r, floats(1.0))
    return builder.select(vanishes, floats(0.0), builder.fmul(power, power_of_two))


def tanh_lanes(builder: Any, x: Any) -> Any:
    """e / (e + 2) with e = e^2x - 1, which is 2^n (e^r - 1) + (2^n - 1); past 10 it is 1 in float32."""
    twice = builder.fadd(x, x)
    for sign, bound in (("<", -20.0), (">", 20.0)):
        twice = builder.select(builder.fcmp_ordered(sign, twice, floats(bound)), floats(bound), twice)
    is_number = builder.fcmp_ordered("ord", twice, twice)
    n, power_of_two = _nearest_power(builder, builder.select(is_number, twice, floats(0.0)))
    r = _remainder(builder, twice, n)
    above_one = builder.fmul(_exp_slope(builder, r), r)
    e = multiply_add_lanes(builder, power_of_two, above_one, builder.fsub(power_of_two, floats(1.0)))
    return builder.fdiv(e, builder.fadd(e, floats(2.0)))


def _nearest_power(builder: Any, x: Any) -> tuple[Any, Any]:
    """n, and 2^n."""
    n = call(builder, "llvm.rint.v16f32", VECTOR, (builder.fmul(x, floats(math.log2(math.e))),), ())
    exponent = builder.shl(builder.add(builder.fptosi(n, INTEGERS), integers(127)), integers(23))
    return n, builder.bitcast(exponent, VECTOR)


def _remainder(builder: Any, x: Any, n: Any) -> Any:
    """x - n ln 2"""
    high = 0.693359375  # nine bits, so that n * high is exact
    r = multiply_add_lanes(builder, n, floats(-high), x)
    return multiply_add_lanes(builder, n, floats(high - math.log(2)), r)


def _exp_slope(builder: Any, r: Any) -> Any:
    """(e^r - 1) / r for |r| <= ln 2 / 2"""
    slope = floats(1 / math.factorial(6))
    for degree in range(5, 0, -1):
        slope = multiply_add_lanes(builder, slope, r, floats(1 / math.factorial(degree)))
    return slope


def multiply_add_lanes(builder: Any, left: Any, right: Any, addend: Any) -> Any:
    return call(builder, "llvm.fmuladd.v16f32", VECTOR, (left, right, addend), ())
