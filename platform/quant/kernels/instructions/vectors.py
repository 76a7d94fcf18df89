# mypy: allow-untyped-decorators
"""The fp32 vectors of the CPU this runs on, and the LLVM code of what numba has no words for."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

features: Final = config.CPU_FEATURES or llvmlite.binding.get_host_cpu_features().flatten()
LANES: Final = 16 if "+avx512f" in features else 8 if "+avx2" in features else 4

FLOAT, INT, INT32, BITS8 = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(8)
FLOATS, WORDS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT32, LANES)
CODES, SHORTS = ir.VectorType(BITS8, LANES), ir.VectorType(ir.IntType(16), LANES)
HALVES, MASK = ir.VectorType(ir.HalfType(), LANES), ir.VectorType(ir.IntType(1), LANES)
NO_LANES: Final = ir.Constant(MASK, [0] * LANES)


class Code:
    """Writes LLVM code where the builder stands. Addresses are integers, offsets bytes."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        function_type = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, function_type, name), arguments)

    def splat(self, scalar: Any, vector: Any) -> Any:
        undefined = ir.Constant(vector, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, INT32(0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(WORDS, [0] * LANES))

    def pointer(self, address: Any, offset: int, kind: Any) -> Any:
        return self.builder.inttoptr(self.builder.add(address, INT(offset)), kind.as_pointer())

    def load(self, address: Any, offset: int, kind: Any) -> Any:
        value = self.builder.load(self.pointer(address, offset, kind))
        value.align = 2 if kind is HALVES else 4
        return value

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.call(f"llvm.fma.v{LANES}f32", FLOATS, a, b, c)

    def loop(self, count: Any, initial: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """Run body(index, values) -> values `count` times, at least once, from the initial values on."""
        builder, before = self.builder, self.builder.block
        repeat, after = (builder.append_basic_block(name) for name in ("repeat", "after"))
        builder.branch(repeat)
        builder.position_at_end(repeat)
        index, *values = (builder.phi(value.type) for value in (INT(0), *initial))
        results = body(index, list(values))
        following = builder.add(index, INT(1))
        for phi, start, result in zip([index, *values], [INT(0), *initial], [following, *results], strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(result, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, count), repeat, after)
        builder.position_at_end(after)
        return results

    def sum(self, floats: Any) -> Any:
        return self.reduced(floats, self.builder.fadd)

    def reduced(self, floats: Any, join: Callable[[Any, Any], Any]) -> Any:
        """All lanes as one, halves upon halves."""
        undefined, lanes = ir.Constant(FLOATS, ir.Undefined), LANES
        while lanes > 1:
            lanes //= 2
            order = ir.Constant(WORDS, [lane + lanes if lane < lanes else lane for lane in range(LANES)])
            floats = join(floats, self.builder.shuffle_vector(floats, undefined, order))
        return self.builder.extract_element(floats, INT32(0))

    def lanes_below(self, limit: Any) -> Any:
        """Mask of the lanes whose number is below `limit`."""
        lanes = ir.Constant(WORDS, list(range(LANES)))
        return self.builder.icmp_signed("<", lanes, self.splat(self.builder.trunc(limit, INT32), WORDS))

    def masked_load(self, pointer: Any, mask: Any) -> Any:
        zeros = ir.Constant(FLOATS, [0.0] * LANES)
        return self.call(f"llvm.masked.load.v{LANES}f32.p0", FLOATS, pointer, INT32(4), mask, zeros)

    def inputs(self, x: Any, factors: Any, at: Any, end: Any) -> Any:
        """A vector of the floats at the address x from number `at` on, zeros from `end` on; each times the one at
        `factors`, unless that is None."""
        offset, mask = self.builder.mul(at, INT(4)), self.lanes_below(self.builder.sub(end, at))
        arrays = [x] if factors is None else [x, factors]
        values = [self.masked_load(self.pointer(self.builder.add(one, offset), 0, FLOATS), mask) for one in arrays]
        return values[0] if factors is None else self.builder.fmul(*values)

    def masked_store(self, value: Any, pointer: Any, mask: Any) -> None:
        self.call(f"llvm.masked.store.v{LANES}f32.p0", ir.VoidType(), value, pointer, INT32(4), mask)

    def ahead(self, step: Any, steps: Any, step_bytes: int, distance: int, weights: Any, following: Any) -> Any:
        """Where the weights are that come `distance` bytes after those of this step, and may be some of `following`.

        These themselves where `following` is 0: they are near.
        """
        builder = self.builder
        later = builder.add(step, INT(distance // step_bytes))
        is_here = builder.icmp_signed("<", later, steps)
        base = builder.select(is_here, weights, following)
        place = builder.select(is_here, later, builder.sub(later, steps))
        is_far = builder.icmp_signed("!=", following, INT(0))
        base, place = builder.select(is_far, base, weights), builder.select(is_far, place, step)
        return builder.add(base, builder.mul(place, INT(step_bytes)))

    def prefetch(self, address: Any, near: bool) -> None:
        """Bring a cache line near: to the first level, or only to the second."""
        pointer = self.pointer(address, 0, BITS8)
        self.call("llvm.prefetch.p0", ir.VoidType(), pointer, INT32(0), INT32(3 if near else 2), INT32(1))


def each_case(builder: Any, value: Any, numbers: Iterable[int]) -> Iterator[int]:
    """For each of the numbers: code written meanwhile runs where the value is that one."""
    after = builder.append_basic_block("after")
    switch = builder.switch(value, after)
    for number in numbers:
        block = builder.append_basic_block("case")
        switch.add_case(INT(number), block)
        builder.position_at_end(block)
        yield number
        builder.branch(after)
    builder.position_at_end(after)


@intrinsic
def get(typing: Any, address: Any) -> Any:
    """The float at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return Code(builder).load(arguments[0], 0, FLOAT)

    return types.float32(types.int64), generate


@intrinsic
def put(typing: Any, address: Any, value: Any) -> Any:
    """A float to an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], Code(builder).pointer(arguments[0], 0, FLOAT), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), generate
