"""The vectors of the CPU this runs on, and LLVM code of what numba has no words for: LoRA kernels are written in it."""

from collections.abc import Callable
from typing import Any, Final

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils, config

_features: Final = config.CPU_FEATURES or llvmlite.binding.get_host_cpu_features().flatten()
PAGE: Final = 8
"""Ranks of one page."""
LINE: Final = 64
"""Bytes of a cache line."""
LANES: Final = 16 if "+avx512f" in _features else 8 if "+avx2" in _features else 4

FLOAT, INT, INT32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)
FLOATS, WORDS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT32, LANES)
SHORTS, HALVES = ir.VectorType(ir.IntType(16), LANES), ir.VectorType(ir.HalfType(), LANES)


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
        return self.builder.shuffle_vector(first, undefined, words(0))

    def scalar(self, address: Any, kind: Any) -> Any:
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))

    def mask(self, count: Any) -> Any:
        """True in the first `count` lanes."""
        limit = self.splat(self.builder.trunc(count, INT32), WORDS)
        return self.builder.icmp_signed("<", ir.Constant(WORDS, list(range(LANES))), limit)

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

    def store(self, value: Any, address: Any, dtype: Any, mask: Any) -> None:
        narrow = self._narrow(value, dtype)
        pointer = self.builder.inttoptr(address, narrow.type.as_pointer())
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

    def total(self, value: Any) -> Any:
        """Sum of the lanes, halves first."""
        width = LANES
        while width > 1:
            width //= 2
            order = ir.Constant(WORDS, [(lane + width) % LANES for lane in range(LANES)])
            value = self.builder.fadd(value, self.builder.shuffle_vector(value, value, order))
        return self.builder.extract_element(value, INT32(0))

    def loop(self, count: Any, initial: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """Run body(index, sums) -> sums `count` times."""
        before = self.builder.block
        test, repeat, after = (self.builder.append_basic_block(name) for name in ("test", "repeat", "after"))
        self.builder.branch(test)
        self.builder.position_at_end(test)
        index = self.builder.phi(INT)
        sums = [self.builder.phi(FLOATS) for _ in initial]
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
