"""What shrink and expand share: products with fp32 sums, and a look-up in numbers known at compile time."""

from typing import Final

import triton
import triton.language as tl

_NATIVE: Final = tl.constexpr(not triton.knobs.runtime.interpret)
"""False in the interpreter, which has no bfloat16 arithmetic: products are then taken of the values in fp32."""


@triton.jit
def pick(values: tl.constexpr, index: tl.tensor) -> tl.tensor:
    """values[index] for a tuple of integers."""
    result = index * 0 + values[0]
    for position in tl.static_range(1, len(values)):
        result = tl.where(index >= position, values[position], result)
    return result


@triton.jit
def multiply(a: tl.tensor, b: tl.tensor, total: tl.tensor) -> tl.tensor:
    """total + a b. Two tiles of one 16-bit dtype go to the matrix units as they are; all else is fp32 throughout."""
    if a.dtype == b.dtype and a.dtype.primitive_bitwidth == 16 and _NATIVE:
        total = tl.dot(a, b, total)
    else:
        total = tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    return total


@triton.jit
def multiply_wide(h: tl.tensor, b: tl.tensor, total: tl.tensor) -> tl.tensor:
    """total + h b for h in fp32, on the matrix units, without rounding h to b's 16 bits."""
    high, low = split_wide(h, b.dtype)
    return multiply_split(high, low, b, total)


@triton.jit
def split_wide(h: tl.tensor, dtype: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """h in fp32 as `multiply_split` takes it for weights of `dtype`: in bfloat16 two halves that add up."""
    high, low = h, h
    if dtype == tl.bfloat16:
        high = h.to(tl.bfloat16)
        low = (h - high.to(tl.float32)).to(tl.bfloat16)
    return high, low


@triton.jit
def multiply_split(high: tl.tensor, low: tl.tensor, b: tl.tensor, total: tl.tensor) -> tl.tensor:
    """total + h b for the h of `split_wide`: bfloat16 takes two products; float16, which has not their range, three in
    tf32, which holds b as it is."""
    if b.dtype == tl.bfloat16:
        total = multiply(low, b, multiply(high, b, total))
    elif b.dtype == tl.float16:
        total = tl.dot(high, b.to(tl.float32), total, input_precision="tf32x3")
    else:
        total = multiply(high, b, total)
    return total
