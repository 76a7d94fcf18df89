# mypy: allow-untyped-decorators
"""Codes of 4 or 8 bits as bfloat16 pairs, which the kernels multiply; and the scales of what came out.

Codes of a panel lie by runs of inputs, [runs, RUN_BYTES]: one vector register for each vector of outputs, where an
output has a word. By kind:
    INT4      8 inputs, the even ones in the half bytes of the lower half word, the odd ones above
    INT8      4 inputs, a byte each
    FLOAT8    4 inputs, a byte each, float8_e4m3fn
    FLOAT4    8 inputs as of INT4, float4_e2m1fn, with one byte a scale: the exponent of a power of two
    EXPANDED  2 inputs, bfloat16 already
The bytes of a register of whole bytes are in BYTE_ORDERS, and with HAS_BYTE_TABLES INT8 is a sign and what follows it
(`codes.py`).
They expand to bfloat16 numbers (in `write` to float16 where FLOAT8_AS_HALVES) without rounding: a float8 is one, a
float4 becomes a quarter of itself, a code c of 4 bits stands in the last bits of 128 + c, and one of 8 bits is c, or
with tables c - 127.5. OFFSETS and zero points are taken off the sums.
"""

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..instructions.tile import PANEL, VECTORS
from ..instructions.vectors import BITS8, CODES, FLOAT, FLOATS, HALVES, INT, INT32, LANES, WORDS, Code, features, put

INT4, INT8, FLOAT8, FLOAT4, EXPANDED = range(5)
HALF_BYTES: Final = (INT4, FLOAT4)
PAIRS: Final = (4, 2, 2, 4, 1)
"""By kind of code, the pairs of inputs of a run."""
SCALE_BYTES: Final = (4, 4, 4, 1, 4)
"""By kind of code: scales are fp32, or the exponent of a float4's, 127 more than it is."""
SCALE_ROOM: Final = 6 * PANEL
"""Bytes for what a group of a panel is scaled by: at least fp32 scales and zero points, in whole cache lines."""
RUN_BYTES: Final = 4 * PANEL
FLOAT8_SCALE: Final = 256.0
"""A float8_e4m3fn read as a float16 of the same bits below the sign is so many times too small."""
FLOAT4_EXPONENT: Final = 2
"""What is added to exponents of float4: expanded, these are a quarter of what they stand for, so that the scale is a
normal number whatever its exponent."""
AHEAD: Final = 4096
"""Bytes of codes on their way to the first-level cache."""


HAS_BYTE_TABLES: Final = "+avx512vbmi" in features.split(",") and LANES == 16
"""Whether one instruction looks up 64 codes in a table of 128 bytes (AVX-512 VBMI)."""
HAS_WORD_TABLES: Final = "+avx512bw" in features.split(",") and LANES == 16
"""Whether one instruction looks up 32 words in a table of as many (AVX-512 BW)."""
OFFSETS: Final = (128.0, -127.5 if HAS_BYTE_TABLES else 0.0, 0.0, 0.0)
"""By kind, what expanded codes have too much, besides their zero points."""
LINE: Final = ir.VectorType(BITS8, 64)
_TABLE_ORDER: Final = np.arange(4 * LANES).reshape(-1, 4, 2, 2).transpose(0, 2, 1, 3).reshape(-1)
"""[quarter, pair, output, input]: bytes at the same place of two registers, interleaved within each quarter, are the
words of an output's pairs."""
_HALF_ORDER: Final = np.arange(4 * LANES).reshape(LANES, 2, 2).transpose(2, 0, 1).reshape(-1)
"""[input, output, pair]: each half of the lower bytes, and of the upper ones, are the outputs of one input."""
BYTE_ORDERS: Final = {
    INT8: _TABLE_ORDER if HAS_BYTE_TABLES else np.arange(4 * LANES),
    FLOAT8: _TABLE_ORDER if HAS_BYTE_TABLES else _HALF_ORDER,
}
"""Which byte of [outputs of a register, 4 inputs] is where."""
HALF_WORDS: Final = ir.VectorType(ir.IntType(16), 2 * LANES)
FLOAT8_AS_HALVES: Final = not HAS_BYTE_TABLES
"""Whether `Expansion.write` makes float16 numbers of float8 codes; else bfloat16, as of all others."""


def _bytes_of(values: np.ndarray) -> np.ndarray:
    """[2, 128] uint8: low and high byte of the bfloat16 of each value."""
    bits = values.astype(np.float32).view(np.uint32) >> 16
    return np.stack([bits & 0xFF, bits >> 8]).astype(np.uint8)


def _float8_values() -> np.ndarray:
    """[128] what each float8_e4m3fn without its sign stands for, as often as FLOAT8_SCALE too small."""
    codes = np.arange(128)
    exponents, fractions = codes >> 3, (codes & 7) / 8
    values = np.where(exponents == 0, fractions * 2.0**-6, (1 + fractions) * 2.0 ** (exponents - 7))
    values[0x7F] = np.nan
    return values / FLOAT8_SCALE


FLOAT4_LEAST: Final = 124 << 7
"""The bits of 1 / 8 in bfloat16: a quarter of the least float4 that is not zero."""
_MAGNITUDES: Final = [0, FLOAT4_LEAST, *(FLOAT4_LEAST + (code << 6) for code in range(2, 8))]
FLOAT4_BITS: Final = [sign | bits for sign in (0, 0x8000) for bits in _MAGNITUDES]
"""The bfloat16 of a quarter of each float4."""
TABLES: Final = {INT8: _bytes_of(np.arange(128) + 0.5), FLOAT8: _bytes_of(_float8_values())}
"""Of what follows the sign of a code in a byte."""


class Expansion(Code):
    """Writes the LLVM code that expands a vector register of codes: one for each pair of inputs of a run."""

    def __init__(self, builder: Any, kind: int) -> None:
        super().__init__(builder)
        self.kind = kind

    def words(self, address: Any) -> list[Any]:
        """The bfloat16 pairs of a run, [LANES, 2] each."""
        if self.kind == EXPANDED:
            return [self.load(address, 0, WORDS)]
        if self.kind in HALF_BYTES:
            codes = self.load(address, 0, WORDS)
            shifted = [self._shifted(codes, 4 * at) for at in range(4)]
            return [self._float4(pair) if self.kind == FLOAT4 else self._integer4(pair) for pair in shifted]
        if HAS_BYTE_TABLES:
            return self._looked_up(self.builder.load(self.pointer(address, 0, LINE), align=64))
        first, second, third, fourth = self._numbers(self.load(address, 0, WORDS))
        return [self._pair(first, second), self._pair(third, fourth)]

    def write(self, address: Any, target: Any, vector: int) -> None:
        """The run of a vector, to the run of a panel of 16-bit numbers (`panels.py`)."""
        if self.kind == FLOAT8 and FLOAT8_AS_HALVES:
            halves = self._halves(self.load(address, 0, WORDS))
            stores = [(half, (number * PANEL + vector * LANES) * 2) for number, half in enumerate(halves)]
        else:
            stores = [(word, (pair * PANEL + vector * LANES) * 4) for pair, word in enumerate(self.words(address))]
        for value, offset in stores:
            self.builder.store(value, self.pointer(target, offset, value.type), align=2)

    def _constant(self, vector: Any, value: int) -> Any:
        return ir.Constant(vector, [value] * LANES)

    def _shifted(self, words: Any, bits: int) -> Any:
        return self.builder.lshr(words, self._constant(WORDS, bits)) if bits else words

    def _integer4(self, pair: Any) -> Any:
        """Of a code in the lowest four bits of each half of a word."""
        low = self.builder.and_(pair, self._constant(WORDS, 0x000F000F))
        return self.builder.or_(low, self._constant(WORDS, 0x43004300))

    def _float4(self, pair: Any) -> Any:
        """The same of a float4."""
        builder = self.builder
        codes = builder.bitcast(pair, HALF_WORDS)
        if HAS_WORD_TABLES:  # by five bits of each half, the fifth a neighbour's
            table = ir.Constant(HALF_WORDS, FLOAT4_BITS * 2)
            return builder.bitcast(self.call("llvm.x86.avx512.permvar.hi.512", HALF_WORDS, table, codes), WORDS)

        def every(value: int) -> Any:
            return ir.Constant(HALF_WORDS, [value] * 2 * LANES)

        size = builder.and_(codes, every(7))
        normal = builder.add(builder.shl(size, every(6)), every(FLOAT4_LEAST))
        least = builder.mul(size, every(FLOAT4_LEAST))
        bits = builder.select(builder.icmp_unsigned("<", size, every(2)), least, normal)
        sign = builder.shl(builder.and_(codes, every(8)), every(12))
        return builder.bitcast(builder.or_(bits, sign), WORDS)

    def _looked_up(self, codes: Any) -> list[Any]:
        low, high = (self._look_up(codes, table) for table in TABLES[self.kind])
        high = self.builder.or_(high, self.builder.and_(codes, ir.Constant(LINE, [0x80] * 64)))
        words = []
        for pair in range(2):
            places = [quarter * 16 + pair * 8 + place for quarter in range(4) for place in range(8)]
            order = ir.Constant(ir.VectorType(INT32, 64), [part + place for place in places for part in (0, 64)])
            words.append(self.builder.bitcast(self.builder.shuffle_vector(low, high, order), WORDS))
        return words

    def _look_up(self, codes: Any, table: np.ndarray) -> Any:
        """table [128] of each of 64 codes without its highest bit."""
        halves = [ir.Constant(LINE, half.tolist()) for half in table.reshape(2, 64)]
        return self.call("llvm.x86.avx512.vpermi2var.qi.512", LINE, halves[0], codes, halves[1])

    def _numbers(self, codes: Any) -> list[Any]:
        """Of whole bytes, fp32."""
        if self.kind == FLOAT8:
            return [self.builder.fpext(self.builder.bitcast(half, HALVES), FLOATS) for half in self._halves(codes)]
        byte = self._constant(WORDS, 0xFF)
        return [self.builder.sitofp(self.builder.and_(self._shifted(codes, 8 * at), byte), FLOATS) for at in range(4)]

    def _halves(self, codes: Any) -> list[Any]:
        """Of float8, the bits of float16: its exponent is a bit longer, and so the value FLOAT8_SCALE too small."""
        builder, halves = self.builder, []
        eight, one, beside = (ir.Constant(HALF_WORDS, [bits] * 2 * LANES) for bits in (8, 1, 0xBF80))
        codes = builder.bitcast(codes, HALF_WORDS)
        for upper in (builder.shl(codes, eight), codes):
            both = builder.and_(builder.ashr(upper, one), beside)
            for first in (0, LANES):
                order = ir.Constant(WORDS, list(range(first, first + LANES)))
                halves.append(builder.shuffle_vector(both, ir.Constant(HALF_WORDS, ir.Undefined), order))
        return halves

    def _pair(self, even: Any, odd: Any) -> Any:
        """The bits of two floats that are bfloat16 numbers, as a word of both."""
        low = self._shifted(self.builder.bitcast(even, WORDS), 16)
        high = self.builder.and_(self.builder.bitcast(odd, WORDS), self._constant(WORDS, 0xFFFF0000))
        return self.builder.or_(low, high)


@intrinsic(prefer_literal=True)
def _expand(typing: Any, kind: Any, codes: Any, target: Any, pairs: Any, pitch: Any, apart: Any) -> Any:
    """Codes of a panel, in the order of memory, and the offset of their kind (literal), as bfloat16 [pairs, LANES, 2]
    of each vector, pairs `pitch` and vectors `apart` bytes apart; they are those of whole runs."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, codes, target, pairs, pitch, apart = arguments
        expansion, run_pairs = Expansion(builder, kind.literal_value), PAIRS[kind.literal_value]
        with cgutils.for_range(builder, builder.sdiv(pairs, INT(run_pairs)), intp=INT) as loop:
            run = builder.add(codes, builder.mul(loop.index, INT(RUN_BYTES)))
            for line in range(0, RUN_BYTES, 64):
                expansion.prefetch(builder.add(run, INT(AHEAD + line)), near=True)
            for vector in range(VECTORS):
                place = builder.add(target, builder.mul(apart, INT(vector)))
                for at, word in enumerate(expansion.words(builder.add(run, INT(vector * 4 * LANES)))):
                    pair = builder.add(builder.mul(loop.index, INT(run_pairs)), INT(at))
                    address = builder.add(place, builder.mul(pair, pitch))
                    builder.store(word, expansion.pointer(address, 0, WORDS), align=4)
        return context.get_dummy_value()

    return types.void(kind, *[types.int64] * 5), generate


@njit
def expand_panel(kind: int, codes: int, target: int, pairs: int, side_by_side: bool) -> None:
    """So many pairs of a panel: as [pairs, PANEL, 2] bfloat16 if vectors go side by side, else as
    [VECTORS, pairs, LANES, 2]."""
    pitch, apart = (4 * PANEL, 4 * LANES) if side_by_side else (4 * LANES, 4 * LANES * pairs)
    if kind == INT4:
        _expand(INT4, codes, target, pairs, pitch, apart)
    elif kind == INT8:
        _expand(INT8, codes, target, pairs, pitch, apart)
    elif kind == FLOAT4:
        _expand(FLOAT4, codes, target, pairs, pitch, apart)
    else:
        _expand(FLOAT8, codes, target, pairs, pitch, apart)


def powers_of_two(code: Code, address: Any) -> Any:
    """The fp32 scales of a vector of outputs, of their exponents."""
    builder = code.builder
    stored = builder.zext(builder.load(code.pointer(address, 0, CODES), align=1), WORDS)
    exponents = builder.add(stored, ir.Constant(WORDS, [FLOAT4_EXPONENT] * LANES))
    return builder.bitcast(builder.shl(exponents, ir.Constant(WORDS, [23] * LANES)), FLOATS)


@intrinsic
def _write_scales(typing: Any, exponents: Any, target: Any) -> Any:
    """target [PANEL] fp32 = powers of two of a group's exponents [PANEL]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code, (exponents, target) = Code(builder), arguments
        for lane in range(0, PANEL, LANES):
            scale = powers_of_two(code, builder.add(exponents, INT(lane)))
            builder.store(scale, code.pointer(target, 4 * lane, FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@njit
def scales_of(
    kind: int, scales: int, zeros: int, first: int, groups: int, room: int
) -> tuple[np.int64, np.int64]:  # fmt: skip
    """Where scales fp32 and zero points [groups, PANEL] are from group `first` on: among all, or if scales are
    exponents in the room, written there; it has SCALE_ROOM bytes for each group."""
    if kind != FLOAT4:
        return np.int64(scales + first * PANEL * 4), np.int64(zeros + first * PANEL)
    beyond = np.int64(room) + groups * PANEL * 4
    for group in range(groups):
        _write_scales(scales + (first + group) * PANEL, room + group * PANEL * 4)
        for place in range(0, PANEL, 4):
            put(beyond + group * PANEL + place, np.float32(0))
    return np.int64(room), beyond


class Scaling(Code):
    """Writes the LLVM code that rids sums of one vector of outputs of their zero points, and scales them.

    Addresses of a group's scales, of the kind's bytes, and zeros uint8, of which FLOAT4 has none.
    """

    def __init__(self, builder: Any, kind: int, scales: Any, zeros: Any, offset: Any) -> None:
        super().__init__(builder)
        self._excess = None
        if kind == FLOAT4:
            self._scale = powers_of_two(self, scales)
            return
        codes = builder.load(self.pointer(zeros, 0, CODES), align=1)
        zero = builder.uitofp(builder.zext(codes, WORDS), FLOATS)
        self._scale, self._excess = self.load(scales, 0, FLOATS), builder.fneg(builder.fadd(zero, offset))

    def add(self, start: Any, sums: Any, inputs: Any) -> Any:
        """start + scale * (sums - (zero + offset) * the sum of a row's inputs, which is at the address `inputs`)"""
        if self._excess is None:
            return self.fma(self._scale, sums, start)
        total = self.splat(self.load(inputs, 0, FLOAT), FLOATS)
        return self.fma(self._scale, self.fma(self._excess, total, sums), start)


@intrinsic
def add_scaled(
    typing: Any, sums: Any, rows: Any, scales: Any, zeros: Any, offset: Any, inputs: Any, bias: Any, y: Any,
    stride: Any, columns: Any,
) -> Any:  # fmt: skip
    """y [rows, columns] = (bias, or y where bias is 0) + scales * (sums - (zeros + offset) * inputs)

    Addresses of sums [rows, PANEL], scales, zeros (uint8) and bias [PANEL], inputs [rows]; y's stride is in bytes.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums, rows, scales, zeros, offset, inputs, bias, y, stride, columns = arguments
        code = Code(builder)
        for vector in range(VECTORS):
            lanes, at = INT(vector * LANES), vector * LANES * 4
            mask = code.lanes_below(builder.sub(columns, lanes))
            places = builder.add(scales, INT(at)), builder.add(zeros, lanes)
            scaling = Scaling(builder, EXPANDED, *places, code.splat(offset, FLOATS))
            with cgutils.for_range(builder, rows, intp=INT) as loop:
                place = builder.add(y, builder.mul(loop.index, stride))
                begun = builder.select(builder.icmp_signed("!=", bias, INT(0)), bias, place)
                start = code.masked_load(code.pointer(begun, at, FLOATS), mask)
                summed = code.load(builder.add(sums, builder.mul(loop.index, INT(PANEL * 4))), at, FLOATS)
                result = scaling.add(start, summed, builder.add(inputs, builder.mul(loop.index, INT(4))))
                code.masked_store(result, code.pointer(place, at, FLOATS), mask)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4, types.float32, *[types.int64] * 5), generate
