# mypy: allow-untyped-decorators
"""Dot products in matrix registers, Intel's AMX: 16 rows x 64 bytes, multiplied as a whole."""

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .digits import add_products
from .dot_shapes import ADDENDS, BFLOAT16, BYTES, INTEGER, ROWS, SPLIT_BFLOAT16
from .permission import may_use_matrix_registers
from .vectors import INT, each_case, features

INSTRUCTIONS: Final = ("tdpbf16ps", "tdpbf16ps", "tdpbsud")
"""By kind of product."""
AHEAD: Final = 6
"""Steps whose weights are on their way to the first-level cache."""
INT8: Final = ir.IntType(8)
SUMS, WEIGHTS, INPUTS = 0, 4, 6
"""Numbers of the first register of each use: [row blocks, 2 halves of a panel], [2 halves], [2 addends]."""


HAS_MATRIX: Final = {"+amx-bf16", "+amx-int8", "+avx512vnni"} <= set(features.split(",")) and may_use_matrix_registers()
"""Whether the functions below can run here."""


def _configurations() -> np.ndarray:
    """[ROWS, 64] uint8: what configures the registers for 1 to ROWS rows; weights always have 16."""
    configurations = np.zeros((ROWS, 64), np.uint8)
    configurations[:, 0] = 1
    configurations[:, 16:32:2] = 64
    configurations[:, 48:56] = np.arange(1, ROWS + 1)[:, None]
    configurations[:, 48 + WEIGHTS : 48 + WEIGHTS + 2] = ROWS
    return configurations


CONFIGURATIONS: Final = _configurations()
ZEROS: Final = np.zeros(2 * ROWS, np.int32)


def _call(builder: Any, name: str, *arguments: Any) -> None:
    function_type = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    builder.call(cgutils.get_or_insert_function(builder.module, function_type, f"llvm.x86.{name}"), arguments)


def _pointer(builder: Any, address: Any, offset: Any) -> Any:
    return builder.inttoptr(builder.add(address, offset), INT8.as_pointer())


@intrinsic
def _configure(typing: Any, configuration: Any) -> Any:
    """Ready the registers for so many rows: the address of a row of CONFIGURATIONS. Clears them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _call(builder, "ldtilecfg", _pointer(builder, arguments[0], INT(0)))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def _release(typing: Any) -> Any:
    """Done: the system need not save the registers any more."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _multiply(
    typing: Any, kind: Any, blocks: Any, from_memory: Any, start: Any, start_stride: Any, x: Any, x_block: Any,
    weights: Any, steps: Any, y: Any, stride: Any, following: Any,
) -> Any:  # fmt: skip
    """y [blocks * rows, 32] = start + x W^T over `steps` steps of inputs. Addresses and bytes but for the first three.

    kind:         of product
    blocks:       1 or 2, blocks of rows
    from_memory:  1 if the weights, and those `following`, are to be brought near on the way, else 0
    start:        of the sums to begin with, rows `start_stride` apart (0: one row for all)
    x:            [steps, addends, ROWS, 64 bytes] of the first block of rows, the second's `x_block` further
    weights:      [steps, 16, 32, 4 bytes]
    y:            rows `stride` apart
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, blocks, from_memory, *places = arguments
        for product in each_case(builder, kind, (BFLOAT16, SPLIT_BFLOAT16, INTEGER)):
            for count in each_case(builder, blocks, (1, 2)):
                for is_far in each_case(builder, from_memory, (0, 1)):
                    _write_product(builder, product, count, bool(is_far), *places)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 12), generate


def _write_product(
    builder: Any, kind: int, blocks: int, from_memory: bool, start: Any, start_stride: Any, x: Any, x_block: Any,
    weights: Any, steps: Any, y: Any, stride: Any, following: Any,
) -> None:  # fmt: skip
    instruction, addends = INSTRUCTIONS[kind], ADDENDS[kind]
    cells = [(block, half) for block in range(blocks) for half in range(2)]

    def register(number: int) -> Any:
        return ir.Constant(INT8, number)

    def move(name: str, address: Any, pitch: Any) -> None:
        for block, half in cells:
            offset = builder.add(builder.mul(pitch, INT(block * ROWS)), INT(64 * half))
            _call(builder, name, register(SUMS + 2 * block + half), _pointer(builder, address, offset), pitch)

    move("tileloadd64", start, start_stride)
    with cgutils.for_range(builder, steps, intp=INT) as loop:
        offset = builder.mul(loop.index, INT(2 * BYTES))
        for half in range(2):
            line = builder.add(offset, INT(64 * half))
            _call(builder, "tileloadd64", register(WEIGHTS + half), _pointer(builder, weights, line), INT(128))
        if from_memory:
            later = builder.add(loop.index, INT(AHEAD))
            here = builder.icmp_signed("<", later, steps)
            base = builder.select(here, weights, following)
            later = builder.select(here, later, builder.sub(later, steps))
            _prefetch(builder, builder.add(base, builder.mul(later, INT(2 * BYTES))))
        for block in range(blocks):
            step = builder.mul(loop.index, INT(addends * BYTES))
            base = builder.add(builder.add(x, step), builder.mul(x_block, INT(block)))
            for addend in range(addends):
                place = _pointer(builder, base, INT(addend * BYTES))
                _call(builder, "tileloadd64", register(INPUTS + addend), place, INT(64))
            for addend in range(addends):
                for half in range(2):
                    _call(
                        builder, instruction, register(SUMS + 2 * block + half), register(INPUTS + addend),
                        register(WEIGHTS + half),
                    )  # fmt: skip
    move("tilestored64", y, stride)


def _prefetch(builder: Any, address: Any) -> None:
    """One step's weights, to the first level."""
    pointers = ir.FunctionType(ir.VoidType(), [INT8.as_pointer(), *[ir.IntType(32)] * 3])
    function = cgutils.get_or_insert_function(builder.module, pointers, "llvm.prefetch.p0")
    for line in range(0, 2 * BYTES, 64):
        hints = [ir.Constant(ir.IntType(32), hint) for hint in (0, 3, 1)]
        builder.call(function, [_pointer(builder, address, INT(line)), *hints])


@njit
def ready(rows: int) -> None:
    """Ready the registers for products of so many rows, and of twice ROWS."""
    _configure(CONFIGURATIONS.ctypes.data + (min(rows, ROWS) - 1) * 64)


@njit
def done() -> None:
    _release()


@njit
def _multiply_rows(
    kind: int, rows: int, usual: int, start: int, pitch: int, x: int, x_block: int, weights: int, steps: int, y: int,
    stride: int, following: int,
) -> None:  # fmt: skip
    is_unusual = rows <= ROWS and rows != usual
    if is_unusual:
        ready(rows)
    blocks, is_far = 2 if rows > ROWS else 1, 1 if following else 0
    _multiply(kind, blocks, is_far, start, pitch, x, x_block, weights, steps, y, stride, following)
    if is_unusual:
        ready(usual)


@njit
def multiply_bfloat16(
    rows: int, usual: int, start: int, pitch: int, x: int, x_block: int, weights: int, steps: int, y: int,
    stride: int, following: int,
) -> None:  # fmt: skip
    """As dots.multiply_bfloat16."""
    _multiply_rows(BFLOAT16, rows, usual, start, pitch, x, x_block, weights, steps, y, stride, following)


@njit
def multiply_split_bfloat16(
    rows: int, usual: int, start: int, pitch: int, x: int, x_block: int, weights: int, steps: int, y: int,
    stride: int, following: int,
) -> None:  # fmt: skip
    """The same for activations that are each the sum of two such numbers, the rows of the first before the others."""
    _multiply_rows(SPLIT_BFLOAT16, rows, usual, start, pitch, x, x_block, weights, steps, y, stride, following)


@njit
def add_integers(
    rows: int, usual: int, x: int, x_block: int, weights: int, steps: int, following: int, scales: int, zeros: int,
    row_scales: int, row_sums: int, bias: int, y: int, sums: int,
) -> None:  # fmt: skip
    """As dots.add_integers."""
    _multiply_rows(INTEGER, rows, usual, ZEROS.ctypes.data, 0, x, x_block, weights, steps, sums, 128, following)
    add_products(sums, rows // 2, scales, zeros, row_scales, row_sums, bias, y)
