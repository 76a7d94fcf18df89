# mypy: allow-untyped-decorators
"""Codes of 4 or 8 bits as bfloat16 pairs, which the kernels multiply; and the scales of what came out.

Codes of a panel, [pairs, bytes of a pair]:
    INT4      [pairs, PANEL]       the even input in the low half of each byte
    INT8      [pairs, 2, PANEL]    unsigned
    FLOAT8    [pairs, 2, PANEL]    float8_e4m3fn; with HAS_BYTE_TABLES in FLOAT8_ORDER
They expand to bfloat16 numbers without rounding: a code of 8 bits or a float8 is one, and a code c of 4 bits stands in
the last bits of 128 + c. The zero points are taken off the sums.
"""

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .tile import PANEL, VECTORS
from .vectors import CODES, FLOAT, FLOATS, HALVES, INT, INT32, LANES, SHORTS, WORDS, Code, features

INT4, INT8, FLOAT8 = range(3)
OFFSETS: Final = (128.0, 0.0, 0.0)
"""By kind, what expanded codes have too much, besides their zero points."""
PAIR_BYTES: Final = (PANEL, 2 * PANEL, 2 * PANEL)
"""By kind of code."""
FLOAT8_SCALE: Final = 256.0
"""A float8_e4m3fn read as a float16 of the same bits below the sign is so many times too small."""
AHEAD: Final = 4096
"""Bytes of codes on their way to the first-level cache."""


HAS_BYTE_TABLES: Final = "+avx512vbmi" in features.split(",") and LANES == 16
"""Whether one instruction looks up 64 codes in a table of 128 bytes (AVX-512 VBMI)."""
LINE: Final = ir.VectorType(ir.IntType(8), 64)


def _float8_table() -> np.ndarray:
    """[2, 128] uint8: low and high byte of the bfloat16 that each float8_e4m3fn without its sign stands for."""
    codes = np.arange(128)
    exponents, fractions = codes >> 3, (codes & 7) / 8
    values = np.where(exponents == 0, fractions * 2.0**-6, (1 + fractions) * 2.0 ** (exponents - 7))
    values[0x7F] = np.nan
    bits = (values / FLOAT8_SCALE).astype(np.float32).view(np.uint32) >> 16
    return np.stack([bits & 0xFF, bits >> 8]).astype(np.uint8)


FLOAT8_TABLE: Final = _float8_table()
FLOAT8_ORDER: Final = np.arange(64).reshape(2, 2, 4, 4).transpose(2, 1, 3, 0).reshape(64)
"""Which code of [2 inputs, PANEL] is where, [quarter, half of the outputs, output, input]: so bytes at the same place
of two registers, interleaved within each quarter, are the words of an output's two inputs."""


class _Expansion(Code):
    """Writes the LLVM code that expands one pair of inputs of a panel."""

    def __init__(self, builder: Any, kind: int) -> None:
        super().__init__(builder)
        self.kind = kind

    def constant(self, vector: Any, value: int) -> Any:
        return ir.Constant(vector, [value] * LANES)

    def codes(self, address: Any, offset: int) -> Any:
        value = self.builder.load(self.pointer(address, offset, CODES))
        value.align = 1
        return value

    def words(self, address: Any, offset: int) -> Any:
        return self.builder.zext(self.codes(address, offset), WORDS)

    def float8(self, address: Any, offset: int) -> Any:
        code = self.builder.zext(self.codes(address, offset), SHORTS)
        number = self.builder.shl(self.builder.and_(code, self.constant(SHORTS, 0x7F)), self.constant(SHORTS, 7))
        sign = self.builder.shl(self.builder.and_(code, self.constant(SHORTS, 0x80)), self.constant(SHORTS, 8))
        return self.builder.fpext(self.builder.bitcast(self.builder.or_(number, sign), HALVES), FLOATS)

    def look_up(self, codes: Any, table: np.ndarray) -> Any:
        """table [128] of each of 64 codes without its highest bit."""
        halves = [ir.Constant(LINE, half.tolist()) for half in table.reshape(2, 64)]
        return self.call("llvm.x86.avx512.vpermi2var.qi.512", LINE, halves[0], codes, halves[1])

    def float8_pair(self, address: Any, target: Any) -> None:
        codes = self.builder.load(self.pointer(address, 0, LINE), align=1)
        low, high = (self.look_up(codes, table) for table in FLOAT8_TABLE)
        high = self.builder.or_(high, self.builder.and_(codes, ir.Constant(LINE, [0x80] * 64)))
        for vector in range(VECTORS):
            places = [quarter * 16 + vector * 8 + place for quarter in range(4) for place in range(8)]
            order = [part + place for place in places for part in (0, 64)]
            line = self.builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(INT32, 64), order))
            self.builder.store(line, self.pointer(target, vector * LANES * 4, LINE), align=4)

    def both(self, address: Any, vector: int) -> list[Any]:
        """The even and the odd input of LANES outputs, as fp32."""
        offsets = (vector * LANES, PANEL + vector * LANES)
        if self.kind == FLOAT8:
            return [self.float8(address, offset) for offset in offsets]
        return [self.builder.sitofp(self.words(address, offset), FLOATS) for offset in offsets]

    def half_bytes(self, address: Any, vector: int) -> Any:
        codes = self.words(address, vector * LANES)
        even = self.builder.and_(codes, self.constant(WORDS, 0xF))
        odd = self.builder.and_(self.builder.shl(codes, self.constant(WORDS, 12)), self.constant(WORDS, 0xF0000))
        return self.builder.or_(self.builder.or_(even, odd), self.constant(WORDS, 0x43004300))

    def pair(self, address: Any, target: Any) -> None:
        if self.kind == FLOAT8 and HAS_BYTE_TABLES:
            self.float8_pair(address, target)
            return
        for vector in range(VECTORS):
            if self.kind == INT4:
                word = self.half_bytes(address, vector)
            else:
                even, odd = (self.builder.bitcast(value, WORDS) for value in self.both(address, vector))
                low = self.builder.lshr(even, self.constant(WORDS, 16))
                word = self.builder.or_(low, self.builder.and_(odd, self.constant(WORDS, 0xFFFF0000)))
            self.builder.store(word, self.pointer(target, vector * LANES * 4, WORDS), align=4)


@intrinsic(prefer_literal=True)
def expand(typing: Any, kind: Any, codes: Any, target: Any, pairs: Any) -> Any:
    """target [pairs, PANEL, 2] bfloat16 = codes and the offset of their kind (literal); both are addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, codes, target, pairs = arguments
        expansion = _Expansion(builder, kind.literal_value)
        with cgutils.for_range(builder, pairs, intp=INT) as loop:
            source = builder.add(codes, builder.mul(loop.index, INT(PAIR_BYTES[kind.literal_value])))
            expansion.prefetch(builder.add(source, INT(AHEAD)), near=True)
            expansion.pair(source, builder.add(target, builder.mul(loop.index, INT(PANEL * 4))))
        return context.get_dummy_value()

    return types.void(kind, *[types.int64] * 3), generate


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
        code = _Expansion(builder, INT8)
        for vector in range(VECTORS):
            at = vector * LANES * 4
            mask = code.lanes_below(builder.sub(columns, INT(vector * LANES)))
            scale, zero = code.load(scales, at, FLOATS), builder.sitofp(code.words(zeros, vector * LANES), FLOATS)
            excess = builder.fneg(builder.fadd(zero, code.splat(offset, FLOATS)))
            with cgutils.for_range(builder, rows, intp=INT) as loop:
                place = builder.add(y, builder.mul(loop.index, stride))
                begun = builder.select(builder.icmp_signed("!=", bias, INT(0)), bias, place)
                start = code.masked_load(code.pointer(begun, at, FLOATS), mask)
                summed = code.load(builder.add(sums, builder.mul(loop.index, INT(PANEL * 4))), at, FLOATS)
                total = code.splat(code.load(builder.add(inputs, builder.mul(loop.index, INT(4))), 0, FLOAT), FLOATS)
                exact = code.call(f"llvm.fma.v{LANES}f32", FLOATS, excess, total, summed)
                result = code.call(f"llvm.fma.v{LANES}f32", FLOATS, scale, exact, start)
                code.masked_store(result, code.pointer(place, at, FLOATS), mask)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4, types.float32, *[types.int64] * 5), generate
