"""Numbers of a draw: the row's uniform number, weights as integers, floats as integers of the same order (triton).

Weights are added up as integers, multiples of 2^-44 of the most likely token's: a sum is the same in any order, so no
split of a row and no neighbour changes a bit of it. Tokens below 2^-44 have no weight.
"""

from typing import Final

import triton
import triton.language as tl

ONE: Final = tl.constexpr(float(2**44))
"""The most likely token's mass. 2^18 of them are still within 63 bits."""
LOWEST: Final = tl.constexpr(-31.0)
"""e^x below this has no mass."""
LOG2_E: Final = tl.constexpr(1.4426950408889634)
LN2_HIGH: Final = tl.constexpr(0.693359375)
"""Nine bits, so that n * LN2_HIGH is exact."""
LN2_LOW: Final = tl.constexpr(-0.00021219444005469057)


@triton.jit
def uniform(seed: tl.tensor, position: tl.tensor) -> tl.tensor:
    """`SampleRow.uniform`: a float64 in [0, 1), SplitMix64 of (seed, position)."""
    golden = position.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
    return (mix(mix(seed.to(tl.uint64, bitcast=True)) + golden) >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def mix(state: tl.tensor) -> tl.tensor:
    state = state + 0x9E3779B97F4A7C15
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)


@triton.jit
def exponential(x: tl.tensor) -> tl.tensor:
    """e^x to 2e-7 relative for x <= 0, and 0 below LOWEST: 2^n e^r, a Taylor polynomial on |r| <= ln 2 / 2."""
    bounded = tl.maximum(x, LOWEST)
    n = tl.floor(bounded * LOG2_E + 0.5)
    r = tl.fma(n, -LN2_LOW, tl.fma(n, -LN2_HIGH, bounded))
    power = tl.fma(r, 1.0 / 5040, 1.0 / 720)
    power = tl.fma(power, r, 1.0 / 120)
    power = tl.fma(power, r, 1.0 / 24)
    power = tl.fma(power, r, 1.0 / 6)
    power = tl.fma(power, r, 0.5)
    power = tl.fma(power, r, 1.0)
    power = tl.fma(power, r, 1.0)
    scale = ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x >= LOWEST, power * scale, 0.0)


@triton.jit
def order(value: tl.tensor) -> tl.tensor:
    """float32 -> int32 of the same order, zeros alike."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def unorder(key: tl.tensor) -> tl.tensor:
    """int32 -> the float32 that `order` made it of."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def fraction(part: tl.tensor, total: tl.tensor) -> tl.tensor:
    """part * total as the CPU's sampler rounds it: in float64."""
    return part * total.to(tl.float64)


@triton.jit
def nucleus(top_p: tl.tensor, total: tl.tensor) -> tl.tensor:
    """The least mass, at least 1, with which no token before it has top_p of the total."""
    limit = fraction(top_p, total)
    whole = limit.to(tl.int64)
    return tl.where(top_p < 1.0, tl.minimum(whole + (whole.to(tl.float64) < limit).to(tl.int64), total), total)


@triton.jit
def draw_target(number: tl.tensor, total: tl.tensor) -> tl.tensor:
    """What the running sum of the drawn token is the first to exceed."""
    return tl.minimum(fraction(number, total).to(tl.int64), total - 1)
