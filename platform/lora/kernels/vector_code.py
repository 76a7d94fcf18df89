"""The vectors of the CPU this runs on, and LLVM code of what numba has no words for: LoRA kernels are written in it."""

from collections.abc import Callable
from typing import Any, Final

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils, config

FEATURES: Final = config.CPU_FEATURES or llvmlite.binding.get_host_cpu_features().flatten()
PAGE: Final = 8
"""Ranks of one page."""
LINE: Final = 64
"""Bytes of a cache line."""
LANES: Final = 16 if "+avx512f" in FEATURES else 8 if "+avx2" in FEATURES else 4
HAS_BFLOAT16: Final = LANES == 16 and "+avx512bf16" in FEATURES and "+amx-bf16" not in FEATURES
"""Dot products of pairs of bfloat16 numbers that take less time than as many multiply-adds of float32. Where there are
matrix registers as well they take twice as long as on other processors."""

llvmlite.binding.initialize_native_asmparser()

FLOAT, INT, INT32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)
FLOATS, WORDS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT32, LANES)
SHORTS, HALVES = ir.VectorType(ir.IntType(16), LANES), ir.VectorType(ir.HalfType(), LANES)
PAIRS = ir.VectorType(ir.IntType(16), 2 * LANES)
"""Two bfloat16 numbers for each lane."""


def words(value: int) -> Any:
    return ir.Constant(WORDS, [value] * LANES)


class VectorCode:
    """Writes LLVM vector code: loads and stores of any of the four dtypes as fp32 vectors."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        function_type = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, function_type, name), arguments)

    def at(self, address: Any, index: Any, dtype: Any) -> Any:
        return self.builder.add(address, self.builder.mul(index, INT(dtype.bitwidth // 8)))

    def splat(self, scalar: Any, vector: Any) -> Any:
        undefined = ir.Constant(vector, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, INT32(0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(INT32, vector.count), None))

    def scalar(self, address: Any, kind: Any) -> Any:
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))

    def mask(self, count: Any, lanes: int = LANES) -> Any:
        """True in the first `count` lanes."""
        kind = ir.VectorType(INT32, lanes)
        limit = self.splat(self.builder.trunc(count, INT32), kind)
        return self.builder.icmp_signed("<", ir.Constant(kind, list(range(lanes))), limit)

    def load(self, address: Any, dtype: Any, mask: Any = None) -> Any:
        """LANES values from `address` as fp32, zero where the mask is false."""
        stored = FLOATS if dtype == types.float32 else SHORTS
        pointer = self.builder.inttoptr(address, stored.as_pointer())
        if mask is None:
            value = self.builder.load(pointer)
            value.align = dtype.bitwidth // 8
        else:
            name = f"llvm.masked.load.v{LANES}{'f32' if stored is FLOATS else 'i16'}.p0"
            value = self.call(name, stored, pointer, INT32(dtype.bitwidth // 8), mask, ir.Constant(stored, None))
        return self._widen(value, dtype)

    def store(self, value: Any, address: Any, dtype: Any, mask: Any = None) -> None:
        narrow = self._narrow(value, dtype)
        pointer = self.builder.inttoptr(address, narrow.type.as_pointer())
        if mask is None:
            self.builder.store(narrow, pointer, align=dtype.bitwidth // 8)
            return
        name = f"llvm.masked.store.v{LANES}{'f32' if dtype == types.float32 else 'i16'}.p0"
        self.call(name, ir.VoidType(), narrow, pointer, INT32(dtype.bitwidth // 8), mask)

    def _widen(self, value: Any, dtype: Any) -> Any:
        if dtype == types.float32:
            return value
        if dtype == types.int16:
            return self.builder.fpext(self.builder.bitcast(value, HALVES), FLOATS)
        return self.builder.bitcast(self.builder.shl(self.builder.zext(value, WORDS), words(16)), FLOATS)

    def _narrow(self, value: Any, dtype: Any) -> Any:
        """Round to nearest, ties to even."""
        if dtype == types.float32:
            return value
        if dtype == types.int16:
            return self.builder.bitcast(self.builder.fptrunc(value, HALVES), SHORTS)
        bits = self.builder.bitcast(value, WORDS)
        odd = self.builder.and_(self.builder.lshr(bits, words(16)), words(1))
        rounded = self.builder.add(bits, self.builder.add(odd, words(0x7FFF)))
        quiet = self.builder.or_(bits, words(0x400000))
        kept = self.builder.select(self.builder.fcmp_unordered("uno", value, value), quiet, rounded)
        return self.builder.trunc(self.builder.lshr(kept, words(16)), SHORTS)

    def prefetch(self, address: Any) -> None:
        pointer = self.builder.inttoptr(address, ir.IntType(8).as_pointer())
        self.call("llvm.prefetch.p0", ir.VoidType(), pointer, INT32(0), INT32(2), INT32(1))

    def prefetch_near(self, address: Any) -> None:
        """To the first level."""
        pointer = self.builder.inttoptr(address, ir.IntType(8).as_pointer())
        self.call("llvm.prefetch.p0", ir.VoidType(), pointer, INT32(0), INT32(3), INT32(1))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.call(f"llvm.fma.v{LANES}f32", FLOATS, a, b, c)

    def load_pairs(self, address: Any, mask: Any = None) -> Any:
        """2 * LANES bfloat16 numbers, zero where the mask is false."""
        pointer = self.builder.inttoptr(address, PAIRS.as_pointer())
        if mask is None:
            value = self.builder.load(pointer)
            value.align = 2
            return value
        name = f"llvm.masked.load.v{2 * LANES}i16.p0"
        return self.call(name, PAIRS, pointer, INT32(2), mask, ir.Constant(PAIRS, None))

    def round_pairs(self, low: Any, high: Any) -> Any:
        """2 * LANES fp32 numbers as bfloat16, rounded to nearest even."""
        return self._assembly("vcvtne2ps2bf16 $1, $2, $0", "=v,v,v", PAIRS, low, high)

    def pair_masks(self, count: Any) -> tuple[list[Any], Any]:
        """For the first `count` of 2 * LANES numbers: of each half, and of all of them."""
        halves = [self.mask(self.builder.sub(count, INT(first))) for first in (0, LANES)]
        return halves, self.mask(count, 2 * LANES)

    def load_rounded(self, address: Any, dtype: Any, masks: tuple[list[Any], Any] | None = None) -> Any:
        """2 * LANES values from `address` as bfloat16, zero where the masks are false."""
        if dtype == types.uint16:
            return self.load_pairs(address, masks and masks[1])
        halves = [self.at(address, INT(half * LANES), dtype) for half in range(2)]
        parts = [self.load(half, dtype, masks and masks[0][index]) for index, half in enumerate(halves)]
        return self.round_pairs(*parts)

    def sides(self, pairs: Any) -> tuple[Any, Any]:
        """The first and the second bfloat16 number of each lane, as fp32."""
        bits = self.builder.bitcast(pairs, WORDS)
        sides = self.builder.shl(bits, words(16)), self.builder.and_(bits, words(0xFFFF0000))
        return self.builder.bitcast(sides[0], FLOATS), self.builder.bitcast(sides[1], FLOATS)

    def split(self, value: Any) -> Any:
        """fp32 numbers as pairs of bfloat16 numbers that add up to them, all but the last 8 bits."""
        first = self.builder.zext(self._narrow(value, types.uint16), WORDS)
        rest = self.builder.fsub(value, self.builder.bitcast(self.builder.shl(first, words(16)), FLOATS))
        second = self.builder.shl(self.builder.zext(self._narrow(rest, types.uint16), WORDS), words(16))
        return self.builder.or_(first, second)

    def shuffle(self, a: Any, b: Any, order: list[int]) -> Any:
        """Lanes of both, those of b after those of a."""
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(INT32, len(order)), order))

    def dot(self, a: Any, b: Any, total: Any) -> Any:
        """total + a b, of each lane's pairs."""
        return self._assembly("vdpbf16ps $3, $2, $0", "=v,0,v,v", FLOATS, total, a, b)

    def _assembly(self, text: str, constraint: str, result: Any, *arguments: Any) -> Any:
        # As assembly: LLVM's names for these instructions take other types from one version to the next.
        function_type = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.builder.asm(function_type, text, constraint, arguments, side_effect=False)

    def totals(self, values: list[Any]) -> list[Any]:
        """The sums of the lanes of each, halves first, as lanes of one vector or, of more than LANES, of several."""
        if len(values) > LANES:
            return self.totals(values[:LANES]) + self.totals(values[LANES:])
        width = LANES
        while width > 1:
            other = len(values) // 2
            if other:
                values = [self._add_halves(a, b, width) for a, b in zip(values[:other], values[other:], strict=True)]
            else:
                values = [self._add_halves(values[0], None, width)]
            width //= 2
        return values

    def _add_halves(self, a: Any, b: Any, width: int) -> Any:
        """Runs of `width` lanes, each added up to half as many: one of a, one of b in turn."""
        lanes = a.type.count
        sources = (0,) if b is None else (0, lanes)
        firsts = [first + source for first in range(0, lanes, width) for source in sources]

        def half(start: int) -> Any:
            order = [first + start + lane for first in firsts for lane in range(width // 2)]
            kind = ir.VectorType(INT32, len(order))
            return self.builder.shuffle_vector(a, a if b is None else b, ir.Constant(kind, order))

        return self.builder.fadd(half(0), half(width // 2))

    def masked_or_whole(self, is_part: Any, write: Callable[[list[Any]], None], masks: list[Any]) -> None:
        """write(masks) for a part of the vectors; for all of them without, where masks cost instructions."""
        if LANES == 16:
            write(masks)
            return
        with self.builder.if_else(is_part) as (part, whole):
            with part:
                write(masks)
            with whole:
                write([None] * len(masks))

    def loop(self, count: Any, initial: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """Run body(index, sums) -> sums `count` times."""
        before = self.builder.block
        test, repeat, after = (self.builder.append_basic_block(name) for name in ("test", "repeat", "after"))
        self.builder.branch(test)
        self.builder.position_at_end(test)
        index = self.builder.phi(INT)
        sums = [self.builder.phi(value.type) for value in initial]
        self.builder.cbranch(self.builder.icmp_signed("<", index, count), repeat, after)
        self.builder.position_at_end(repeat)
        results = body(index, sums)
        for phi, first, result in zip(
            [index, *sums], [INT(0), *initial], [self.builder.add(index, INT(1)), *results], strict=True
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(result, self.builder.block)
        self.builder.branch(test)
        self.builder.position_at_end(after)
        return sums


def data_of(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    return builder.ptrtoint(context.make_array(array_type)(context, builder, array).data, INT)
