# mypy: allow-untyped-decorators
"""Rows of activations as int16, for products with weights that are whole numbers too.

In each block of inputs a row is scale * (256 * high + low), high and low int8, the scale its largest magnitude / 32639.
Layout: [tiles of ROWS / 2 rows, steps, ROWS, STEP] int8, a row's high bytes before its low ones; or AS_WORDS, int16, of
each four inputs 0, 2, 1 and 3. Then of each block of inputs [rows] scales and [rows] sums of the int16, fp32. Past the
inputs are zeros, past the rows anything.
"""

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..instructions.dot_shapes import BYTES, ROWS
from ..instructions.vectors import CODES, FLOAT, FLOATS, INT, LANES, SHORTS, WORDS, Code, put

AS_WORDS: Final = LANES == 8
"""Processors with vectors of 8 lanes multiply words of 16 bits (`avx2_dots.py`), those with more lanes bytes."""
STEP: Final = 64
"""Inputs of one product."""
TOKENS: Final = ROWS // 2
"""Rows of x of one tile."""
LARGEST: Final = 32639.0
"""127 * 256 + 127"""
PER_ROW: Final = 2
"""Floats that go with a row in a block: its scale and its sum."""
AHEAD: Final = 1024
"""Bytes of scales on their way to the first-level cache: too few of them pass by for the processor to see a stream."""
SERIAL_INPUTS: Final = 8192
"""Fewer than these are one thread's work."""


@njit(inline="always")
def activations_size(m: int, k: int) -> int:
    """Bytes of the activations; those of the scales and sums of a block, m * PER_ROW floats each, follow."""
    return -(-m // TOKENS) * -(-k // STEP) * BYTES


@intrinsic(prefer_literal=True)
def _largest(typing: Any, scaled: Any, x: Any, factors: Any, inputs: Any) -> Any:
    """Magnitude of the largest of `inputs` floats from the address x on, if `scaled` (literal) each times its factor;
    not a number if one is infinite or none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, x, factors, inputs = arguments
        code, zeros = Code(builder), ir.Constant(FLOATS, [0.0] * LANES)
        most, nothing = (cgutils.alloca_once_value(builder, zeros) for _ in range(2))
        vectors = builder.sdiv(builder.add(inputs, INT(LANES - 1)), INT(LANES))
        with cgutils.for_range(builder, vectors, intp=INT) as loop:
            first = builder.mul(loop.index, INT(LANES))
            value = code.inputs(x, factors if scaled.literal_value else None, first, inputs)
            builder.store(
                code.call(
                    f"llvm.maxnum.v{LANES}f32",
                    FLOATS,
                    builder.load(most),
                    code.call(f"llvm.fabs.v{LANES}f32", FLOATS, value),
                ),
                most,
            )
            builder.store(builder.fadd(builder.load(nothing), builder.fmul(value, zeros)), nothing)
        largest = code.reduced(builder.load(most), lambda a, b: code.call(f"llvm.maxnum.v{LANES}f32", FLOATS, a, b))
        return builder.fadd(largest, code.sum(builder.load(nothing)))

    return types.float32(scaled, *[types.int64] * 3), generate


@intrinsic(prefer_literal=True)
def _quantize(
    typing: Any, scaled: Any, x: Any, factors: Any, inputs: Any, inverse: Any, row: Any, steps: Any
) -> Any:  # fmt: skip
    """Steps of floats as in _largest, zeros from `inputs` on, times `inverse`, as int16 of a row. Returns the sum of
    the whole numbers: below 2 ** 24 and exact."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, x, factors, inputs, inverse, row, steps = arguments
        code = Code(builder)
        factor = code.splat(inverse, FLOATS)

        def write(step: Any, totals: list[Any]) -> list[Any]:
            first, place = builder.mul(step, INT(STEP)), builder.add(row, builder.mul(step, INT(BYTES)))
            for lane in range(0, STEP, LANES):
                at = builder.add(first, INT(lane))
                value = code.inputs(x, factors if scaled.literal_value else None, at, inputs)
                whole = builder.fptosi(code.call(f"llvm.rint.v{LANES}f32", FLOATS, builder.fmul(value, factor)), WORDS)
                if AS_WORDS:
                    _store_words(code, whole, builder.add(place, INT(2 * lane)))
                else:
                    _store_bytes(code, whole, builder.add(place, INT(lane)))
                totals = [builder.add(totals[0], whole)]
            return totals

        whole = code.loop(steps, [ir.Constant(WORDS, [0] * LANES)], write)[0]
        return code.sum(builder.sitofp(whole, FLOATS))

    return types.float32(scaled, *[types.int64] * 3, types.float32, *[types.int64] * 2), generate


def _store_words(code: Code, whole: Any, address: Any) -> None:
    order = ir.Constant(WORDS, [four + place for four in range(0, LANES, 4) for place in (0, 2, 1, 3)])
    pairs = code.builder.shuffle_vector(whole, ir.Constant(WORDS, ir.Undefined), order)
    code.builder.store(code.builder.trunc(pairs, SHORTS), code.pointer(address, 0, SHORTS), align=2)


def _store_bytes(code: Code, whole: Any, address: Any) -> None:
    builder, eight = code.builder, ir.Constant(WORDS, [8] * LANES)
    high = builder.ashr(builder.add(whole, ir.Constant(WORDS, [128] * LANES)), eight)
    low = builder.sub(whole, builder.shl(high, eight))
    for words, first in ((high, 0), (low, STEP)):
        builder.store(builder.trunc(words, CODES), code.pointer(address, first, CODES), align=1)


@njit
def _write_row(x: int, factors: int, inputs: int, target: int, steps: int, scale: int, total: int) -> None:
    """One row in one block."""
    largest = _largest(1, x, factors, inputs) if factors else _largest(0, x, factors, inputs)
    inverse = np.float32(LARGEST) / largest if largest > 0 else np.float32(0)
    put(scale, largest / np.float32(LARGEST))
    if factors:
        put(total, _quantize(1, x, factors, inputs, inverse, target, steps))
    else:
        put(total, _quantize(0, x, factors, inputs, inverse, target, steps))


@njit
def _write_rows(x: int, factors: int, activations: int, m: int, k: int, block: int, first: int, last: int) -> None:
    steps = (k + STEP - 1) // STEP
    for row in range(first, last):
        place = activations + activations_size(m, k)
        target = activations + row // TOKENS * steps * BYTES + row % TOKENS * 2 * 64
        for step in range(0, steps, block):
            count, begin = min(block, steps - step), step * STEP
            inputs = min(k - begin, count * STEP)
            source, total = x + (row * k + begin) * 4, place + (m + row) * 4
            own = factors + begin * 4 if factors else 0
            _write_row(source, own, inputs, target + step * BYTES, count, place + row * 4, total)
            place += m * PER_ROW * 4


@njit(parallel=True)
def write_activations(x: int, factors: int, activations: int, m: int, k: int, block: int) -> None:
    """x [m, k] fp32, times factors [k] unless they are 0, -> int16, in blocks of `block` steps; all are addresses."""
    if m * k < SERIAL_INPUTS:
        _write_rows(x, factors, activations, m, k, block, 0, m)
    else:
        for row in prange(m):
            _write_rows(x, factors, activations, m, k, block, row, row + 1)


class Products:
    """Writes the LLVM code that makes floats of whole sums, for the outputs of one vector.

    Addresses of a group's scales fp32 and zeros uint8 [32], and of the rows' scales and sums (see above).
    """

    def __init__(self, code: Code, vector: int, scales: Any, zeros: Any, row_scales: Any, row_sums: Any) -> None:
        builder = code.builder
        codes = builder.load(code.pointer(zeros, vector * LANES, CODES), align=1)
        self._code, self._row_scales, self._row_sums = code, row_scales, row_sums
        self._scale = code.load(scales, vector * LANES * 4, FLOATS)
        self._excess = builder.fneg(builder.uitofp(builder.zext(codes, WORDS), FLOATS))

    def joined(self, high: Any, low: Any) -> Any:
        """256 * high + low, which fits 32 bits for the products of up to 256 inputs."""
        builder = self._code.builder
        return builder.add(builder.shl(high, ir.Constant(WORDS, [8] * LANES)), low)

    def add(self, start: Any, products: Any, row: Any) -> Any:
        """start + scale * row's scale * (products - zero * row's sum)"""
        code, builder = self._code, self._code.builder
        offset = builder.mul(row, INT(4))
        total = code.splat(code.load(builder.add(self._row_sums, offset), 0, FLOAT), FLOATS)
        whole = code.fma(self._excess, total, builder.sitofp(products, FLOATS))
        row_scale = code.splat(code.load(builder.add(self._row_scales, offset), 0, FLOAT), FLOATS)
        return code.fma(builder.fmul(self._scale, row_scale), whole, start)


def bring_scales_near(code: Code, scales: Any, zeros: Any) -> None:
    """Those of the groups that follow."""
    for line in (AHEAD, AHEAD + 64):
        code.prefetch(code.builder.add(scales, INT(line)), near=True)
    code.prefetch(code.builder.add(zeros, INT(AHEAD // 4)), near=True)


def write_tokens(code: Code, products: list[Products], first: Any, end: Any, sums: Any, bias: Any, y: Any) -> None:
    """y [tokens, 32] = (bias, or y where bias is 0) + what `products`, of both vectors, make of sums [tokens, high and
    low, 32] int32, for the tokens first to end."""
    builder = code.builder
    with cgutils.for_range_slice(builder, first, end, INT(1), intp=INT) as (token, _):
        place = builder.add(y, builder.mul(token, INT(128)))
        begun = builder.select(builder.icmp_signed("!=", bias, INT(0)), bias, place)
        row, results = builder.add(sums, builder.mul(token, INT(256))), []
        for vector, one in enumerate(products):
            at = vector * LANES * 4
            high, low = (code.load(row, 128 * part + at, WORDS) for part in range(2))
            results.append(one.add(code.load(begun, at, FLOATS), one.joined(high, low), token))
        # After all loads, or the second vector's would wait for the store of the first.
        for vector, result in enumerate(results):
            builder.store(result, code.pointer(place, vector * LANES * 4, FLOATS), align=4)
