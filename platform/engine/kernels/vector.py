"""Sixteen float32 lanes as a numba type, for the loops that LLVM does not keep in registers by itself.

Memory is a C-contiguous array read by flat index; its element type says what it stores (storage.py). Arithmetic is
always float32. A tuple of vectors is a register tile.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

from .exponentials import exp_lanes, multiply_add_lanes, tanh_lanes
from .storage import (
    FLOAT,
    INTEGERS,
    LIMITS,
    TWICE_BYTES,
    VECTOR,
    alignment,
    call,
    integers,
    narrow,
    pairs,
    stored_type,
    widen,
    widen_pair,
)
from .storage import LANES as LANES

Array = Any
"""A C-contiguous numpy array, inside a kernel."""
Shape = tuple[int, ...]
"""Its length is a number known when compiling; what it holds means nothing."""

Generated = tuple[Any, Callable[..., Any]]
"""What an intrinsic answers: its signature and the function that writes its code."""


class VectorType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="float32x16")


@register_model(VectorType)
class VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, vector_type: VectorType) -> None:
        super().__init__(manager, vector_type, VECTOR)


vector: Final = VectorType()


@intrinsic
def load(typing: Any, array: Any, index: Any) -> Generated:
    """array[index : index + 16]"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        return _load(context, builder, signature.args[0], *arguments)

    return vector(array, index), generate


@intrinsic
def store(typing: Any, array: Any, index: Any, value: Any) -> Generated:
    """array[index : index + 16] = value, rounded to nearest even"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        _store(context, builder, signature.args[0], *arguments)
        return context.get_dummy_value()

    return types.void(array, index, vector), generate


@intrinsic
def scatter(typing: Any, array: Any, index: Any, stride: Any, value: Any) -> Generated:
    """array[index + lane * stride] = value[lane], rounded to nearest even"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        array_value, at, step, lanes = arguments
        data = context.make_array(signature.args[0])(context, builder, array_value).data
        stored = narrow(builder, signature.args[0].dtype, lanes)
        for lane in range(LANES):
            element = builder.extract_element(stored, ir.Constant(ir.IntType(32), lane))
            pointer = builder.gep(data, [at])
            builder.store(element, builder.bitcast(pointer, element.type.as_pointer()))
            at = builder.add(at, step)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, vector), generate


@intrinsic
def prefetch(typing: Any, array: Any, index: Any) -> Generated:
    """Bring the cache line of an element near the processor; what is read later need not be waited for"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        array_value, at = arguments
        pointer = _pointer(context, builder, signature.args[0], array_value, at, ir.IntType(8))
        hints = [ir.Constant(ir.IntType(32), hint) for hint in (0, 2, 1)]
        call(builder, "llvm.prefetch.p0", ir.VoidType(), (pointer, *hints), ())
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def splat(typing: Any, scalar: Any) -> Generated:
    """All lanes = scalar"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        return _splat(builder, arguments[0])

    return vector(types.float32), generate


@intrinsic
def add(typing: Any, left: Any, right: Any) -> Generated:
    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        return builder.fadd(*arguments)

    return vector(vector, vector), generate


@intrinsic
def multiply(typing: Any, left: Any, right: Any) -> Generated:
    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        return builder.fmul(*arguments)

    return vector(vector, vector), generate


@intrinsic
def divide(typing: Any, left: Any, right: Any) -> Generated:
    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        return builder.fdiv(*arguments)

    return vector(vector, vector), generate


@intrinsic
def multiply_add(typing: Any, left: Any, right: Any, addend: Any) -> Generated:
    """left * right + addend"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        return multiply_add_lanes(builder, *arguments)

    return vector(vector, vector, vector), generate


@intrinsic
def maximum(typing: Any, left: Any, right: Any) -> Generated:
    """The larger of each lane; `right` where either is NaN"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return vector(vector, vector), generate


@intrinsic
def largest(typing: Any, value: Any) -> Generated:
    """The largest lane, none of them NaN, as a scalar"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        return call(builder, "llvm.vector.reduce.fmax.v16f32", FLOAT, arguments, ("nnan",))

    return types.float32(vector), generate


@intrinsic
def farther(typing: Any, left: Any, right: Any) -> Generated:
    """The magnitude of each lane that is farther from zero; NaN is farthest"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        bits = [builder.and_(builder.bitcast(lanes, INTEGERS), integers(0x7FFFFFFF)) for lanes in arguments]
        return builder.bitcast(builder.select(builder.icmp_unsigned(">", *bits), *bits), VECTOR)

    return vector(vector, vector), generate


@intrinsic
def farthest(typing: Any, value: Any) -> Generated:
    """The largest of lanes that `farther` answered, as a scalar; NaN where one is"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        bits = builder.bitcast(arguments[0], INTEGERS)
        most = call(builder, "llvm.vector.reduce.umax.v16i32", ir.IntType(32), (bits,), ())
        return builder.bitcast(most, FLOAT)

    return types.float32(vector), generate


@intrinsic
def limit(typing: Any, array: Any) -> Generated:
    """The largest number that an array of 8-bit elements holds; infinity for the others"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        return ir.Constant(FLOAT, LIMITS.get(signature.args[0].dtype, math.inf))

    return types.float32(array), generate


@intrinsic
def beyond(typing: Any, value: Any, bound: Any) -> Generated:
    """How many lanes are farther from zero than `bound`"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        magnitudes = builder.bitcast(
            builder.and_(builder.bitcast(arguments[0], INTEGERS), integers(0x7FFFFFFF)), VECTOR
        )
        mask = builder.fcmp_ordered(">", magnitudes, _splat(builder, arguments[1]))
        bits = builder.bitcast(mask, ir.IntType(LANES))
        return builder.zext(builder.ctpop(bits), ir.IntType(64))

    return types.int64(vector, types.float32), generate


@intrinsic
def total(typing: Any, value: Any) -> Generated:
    """The sum of the lanes, always in the same order"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        start = ir.Constant(FLOAT, 0.0)
        return call(builder, "llvm.vector.reduce.fadd.v16f32", FLOAT, (start, arguments[0]), ("reassoc",))

    return types.float32(vector), generate


@intrinsic
def exp(typing: Any, value: Any) -> Generated:
    """e^value to 3e-7 relative for values up to 88; 0 below -87, NaN of NaN"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        return exp_lanes(builder, arguments[0])

    return vector(vector), generate


@intrinsic
def tanh(typing: Any, value: Any) -> Generated:
    """To 3e-7 relative; NaN of NaN"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        return tanh_lanes(builder, arguments[0])

    return vector(vector), generate


@intrinsic
def zeros(typing: Any, rows: Any, columns: Any) -> Generated:
    """A tile of len(rows) x len(columns) zero vectors: a tuple's length is known when compiling"""
    tile = _tile_type(len(rows) * len(columns))

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        return ir.Constant(context.get_value_type(tile), None)

    return tile(rows, columns), generate


@intrinsic
def load_tile(typing: Any, array: Any, index: Any, stride: Any, rows: Any, columns: Any) -> Generated:
    """Tile of rows x columns vectors; a row starts `stride` elements after the one before"""
    shape = len(rows), len(columns)
    tile = _tile_type(shape[0] * shape[1])

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        indices = _tile_indices(builder, arguments[1], arguments[2], *shape)
        if shape[1] % 2 == 0 and pairs(signature.args[0].dtype):
            couples = [_load_pair(context, builder, signature.args[0], arguments[0], at) for at in indices[::2]]
            return context.make_tuple(builder, tile, [value for couple in couples for value in couple])
        values = [_load(context, builder, signature.args[0], arguments[0], at) for at in indices]
        return context.make_tuple(builder, tile, values)

    return tile(array, types.intp, types.intp, rows, columns), generate


@intrinsic
def store_tile(typing: Any, array: Any, index: Any, stride: Any, rows: Any, columns: Any, tile: Any) -> Generated:
    shape = len(rows), len(columns)

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        values = cgutils.unpack_tuple(builder, arguments[5])
        for at, value in zip(_tile_indices(builder, arguments[1], arguments[2], *shape), values, strict=True):
            _store(context, builder, signature.args[0], arguments[0], at, value)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, rows, columns, tile), generate


@intrinsic
def add_products(typing: Any, tile: Any, scalars: Any, index: Any, stride: Any, vectors: Any) -> Generated:
    """tile[row, column] += scalars[index + row * stride] * vectors[column]"""
    columns = len(vectors)

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        tile_value, array, start, step, vectors_value = arguments
        sums, factors = cgutils.unpack_tuple(builder, tile_value), cgutils.unpack_tuple(builder, vectors_value)
        data = context.make_array(signature.args[1])(context, builder, array).data
        for row in range(len(sums) // columns):
            scalar = _splat(builder, builder.load(builder.gep(data, [start])))
            for column in range(columns):
                at = row * columns + column
                sums[at] = multiply_add_lanes(builder, scalar, factors[column], sums[at])
            start = builder.add(start, step)
        return context.make_tuple(builder, tile, sums)

    return tile(tile, scalars, types.intp, types.intp, vectors), generate


@intrinsic
def multiply_columns(typing: Any, tile: Any, vectors: Any) -> Generated:
    """tile[row, column] * vectors[column]"""
    columns = len(vectors)

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        values, factors = (cgutils.unpack_tuple(builder, argument) for argument in arguments)
        products = [builder.fmul(value, factors[at % columns]) for at, value in enumerate(values)]
        return context.make_tuple(builder, tile, products)

    return tile(tile, vectors), generate


def _tile_type(count: int) -> Any:
    return types.UniTuple(vector, count)  # type: ignore[attr-defined]


def _tile_indices(builder: Any, index: Any, stride: Any, rows: int, columns: int) -> list[Any]:
    starts = [builder.add(index, builder.mul(stride, ir.Constant(stride.type, row))) for row in range(rows)]
    offsets = [ir.Constant(index.type, LANES * column) for column in range(columns)]
    return [builder.add(start, offset) for start in starts for offset in offsets]


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any, pointee: Any) -> Any:
    assert array_type.layout == "C"
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), pointee.as_pointer())


def _load(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    dtype = array_type.dtype
    pointer = _pointer(context, builder, array_type, array, index, stored_type(dtype))
    return widen(builder, dtype, builder.load(pointer, align=alignment(dtype)))


def _load_pair(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> list[Any]:
    pointer = _pointer(context, builder, array_type, array, index, TWICE_BYTES)
    return widen_pair(builder, array_type.dtype, builder.load(pointer, align=1))


def _store(context: Any, builder: Any, array_type: Any, array: Any, index: Any, value: Any) -> None:
    stored = narrow(builder, array_type.dtype, value)
    pointer = _pointer(context, builder, array_type, array, index, stored.type)
    builder.store(stored, pointer, align=alignment(array_type.dtype))


def _splat(builder: Any, scalar: Any) -> Any:
    lane = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(lane, ir.Constant(VECTOR, ir.Undefined), ir.Constant(INTEGERS, [0] * LANES))
