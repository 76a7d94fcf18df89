# mypy: allow-untyped-decorators
"""Dot products in matrix registers, Intel's AMX: 16 rows x 64 bytes, multiplied as a whole."""

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..layouts.int16_activations import Products, bring_scales_near, write_tokens
from .dot_shapes import ADDENDS, BFLOAT16, BYTES, INTEGER, ROWS, SPLIT_BFLOAT16
from .permission import may_use_matrix_registers
from .vectors import INT, Code, each_case, features

INSTRUCTIONS: Final = ("tdpbf16ps", "tdpbf16ps", "tdpbsud")
"""By kind of product."""
AHEAD: Final = 6
"""Steps whose weights are on their way to the first-level cache."""
INT8: Final = ir.IntType(8)
NOTHING, WEIGHTS, ROWS_OF_X = range(3)
SUMS, WEIGHT, INPUTS = 0, 4, 6
"""Numbers of the first register of each use: [row blocks, 2 halves of a panel], [2 halves], [2 addends]."""


HAS_MATRIX: Final = {"+amx-bf16", "+amx-int8", "+avx512vnni"} <= set(features.split(",")) and may_use_matrix_registers()
"""Whether the functions below can run here."""


def _configurations() -> np.ndarray:
    """[ROWS, 64] uint8: what configures the registers for 1 to ROWS rows; weights always have 16."""
    configurations = np.zeros((ROWS, 64), np.uint8)
    configurations[:, 0] = 1
    configurations[:, 16:32:2] = 64
    configurations[:, 48:56] = np.arange(1, ROWS + 1)[:, None]
    configurations[:, 48 + WEIGHT : 48 + WEIGHT + 2] = ROWS
    return configurations


CONFIGURATIONS: Final = _configurations()


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
        kind, blocks, from_memory, start, start_stride, x, x_block, weights, steps, y, stride, following = arguments
        for one in each_case(builder, kind, (BFLOAT16, SPLIT_BFLOAT16)):
            for count in each_case(builder, blocks, (1, 2)):
                for is_far in each_case(builder, from_memory, (0, 1)):
                    product = _Product(builder, one, count)
                    product.begin(start, start_stride)
                    with cgutils.for_range(builder, steps, intp=INT) as loop:
                        product.step(loop.index, steps, x, x_block, weights, following if is_far else None)
                    product.end(y, stride)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 12), generate


@intrinsic
def _multiply_integers(
    typing: Any, blocks: Any, ahead: Any, x: Any, x_block: Any, weights: Any, steps: Any, sums: Any,
    following: Any, tokens: Any, token_sums: Any, scales: Any, zeros: Any, row_scales: Any, row_sums: Any, bias: Any,
    y: Any,
) -> Any:  # fmt: skip
    """sums [blocks * rows, 32] int32 = x W^T of a block of integers; ahead: what is to be brought near on the way,
    NOTHING, WEIGHTS or more ROWS_OF_X. Meanwhile, vectors being idle, what an earlier
    product came to is added to y: `tokens` of it, from token_sums on, as `write_tokens` does."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        blocks, ahead, x, x_block, weights, steps, sums, following, *beside = arguments
        tokens, token_sums, scales, zeros, row_scales, row_sums, bias, y = beside
        code = Code(builder)
        bring_scales_near(code, scales, zeros)
        products = [Products(code, vector, scales, zeros, row_scales, row_sums) for vector in range(2)]
        share = builder.sdiv(builder.add(tokens, builder.sub(steps, INT(1))), steps)
        for count in each_case(builder, blocks, (1, 2)):
            for what in each_case(builder, ahead, (NOTHING, WEIGHTS, ROWS_OF_X)):
                product = _Product(builder, INTEGER, count)
                product.begin(None, None)
                with cgutils.for_range(builder, steps, intp=INT) as loop:
                    far = following if what == WEIGHTS else None
                    product.step(loop.index, steps, x, x_block, weights, far, what == ROWS_OF_X)
                    first = builder.mul(loop.index, share)
                    end = builder.add(first, share)
                    end = builder.select(builder.icmp_signed("<", end, tokens), end, tokens)
                    write_tokens(code, products, first, end, token_sums, bias, y)
                product.end(sums, INT(128))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 16), generate


@intrinsic
def _add_tokens(
    typing: Any, tokens: Any, sums: Any, scales: Any, zeros: Any, row_scales: Any, row_sums: Any, bias: Any, y: Any
) -> Any:
    """What a product came to, added as above."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tokens, sums, scales, zeros, row_scales, row_sums, bias, y = arguments
        code = Code(builder)
        products = [Products(code, vector, scales, zeros, row_scales, row_sums) for vector in range(2)]
        write_tokens(code, products, INT(0), tokens, sums, bias, y)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), generate


class _Product:
    """Writes the LLVM code of a product of 1 or 2 blocks of rows with a panel."""

    def __init__(self, builder: Any, kind: int, blocks: int) -> None:
        self.builder, self.kind, self._blocks = builder, kind, blocks
        self._cells = [(block, half) for block in range(blocks) for half in range(2)]

    def begin(self, start: Any, stride: Any) -> None:
        """Whole numbers begin at 0, others with the sums there."""
        if self.kind == INTEGER:
            for block, half in self._cells:
                self._call("tilezero", _register(SUMS + 2 * block + half))
        else:
            self._move("tileloadd64", start, stride)

    def end(self, y: Any, stride: Any) -> None:
        self._move("tilestored64", y, stride)

    def step(
        self,
        step: Any,
        steps: Any,
        x: Any,
        x_block: Any,
        weights: Any,
        following: Any | None,
        rows_follow: bool = False,
    ) -> None:
        """`following`: None where the weights are near. `rows_follow`: after these, and are to be brought near."""
        builder, addends = self.builder, ADDENDS[self.kind]
        offset = builder.mul(step, INT(2 * BYTES))
        for half in range(2):
            line = builder.add(offset, INT(64 * half))
            self._call("tileloadd64", _register(WEIGHT + half), _pointer(builder, weights, line), INT(128))
        if following is not None:
            self._bring_near(builder.add(step, INT(AHEAD)), steps, weights, following)
        for block in range(self._blocks):
            place = builder.add(builder.mul(step, INT(addends * BYTES)), builder.mul(x_block, INT(block)))
            for addend in range(addends):
                inputs = _pointer(builder, builder.add(x, place), INT(addend * BYTES))
                self._call("tileloadd64", _register(INPUTS + addend), inputs, INT(64))
                if rows_follow:
                    after = builder.add(place, builder.mul(x_block, INT(2)))
                    _prefetch(builder, builder.add(builder.add(x, after), INT(addend * BYTES)), BYTES)
            for addend in range(addends):
                for half in range(2):
                    registers = SUMS + 2 * block + half, INPUTS + addend, WEIGHT + half
                    self._call(INSTRUCTIONS[self.kind], *map(_register, registers))

    def _bring_near(self, later: Any, steps: Any, weights: Any, following: Any) -> None:
        builder = self.builder
        here = builder.icmp_signed("<", later, steps)
        base = builder.select(here, weights, following)
        later = builder.select(here, later, builder.sub(later, steps))
        _prefetch(builder, builder.add(base, builder.mul(later, INT(2 * BYTES))), 2 * BYTES)

    def _move(self, name: str, address: Any, pitch: Any) -> None:
        for block, half in self._cells:
            offset = self.builder.add(self.builder.mul(pitch, INT(block * ROWS)), INT(64 * half))
            self._call(name, _register(SUMS + 2 * block + half), _pointer(self.builder, address, offset), pitch)

    def _call(self, name: str, *arguments: Any) -> None:
        _call(self.builder, name, *arguments)


def _register(number: int) -> Any:
    return ir.Constant(INT8, number)


def _prefetch(builder: Any, address: Any, size: int) -> None:
    """So many bytes, to the first level."""
    pointers = ir.FunctionType(ir.VoidType(), [INT8.as_pointer(), *[ir.IntType(32)] * 3])
    function = cgutils.get_or_insert_function(builder.module, pointers, "llvm.prefetch.p0")
    for line in range(0, size, 64):
        hints = [ir.Constant(ir.IntType(32), hint) for hint in (0, 3, 1)]
        builder.call(function, [_pointer(builder, address, INT(line)), *hints])


@njit(inline="always")
def next_rows(left: int) -> int:
    """How many of the rows that are left the next product should have."""
    return 2 * ROWS if left >= 2 * ROWS else min(left, ROWS)


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
    """As dots.add_integers. While one product is under way vectors add what the one before came to."""
    row, tokens, token, token_sums = 0, 0, 0, sums + 2 * ROWS * 128
    while row < rows:
        count = next_rows(rows - row)
        is_unusual = count <= ROWS and count != usual
        if is_unusual:
            ready(count)
        ahead = WEIGHTS if following and row == 0 else ROWS_OF_X if row + count < rows else NOTHING
        _multiply_integers(
            2 if count > ROWS else 1, ahead, x + row // ROWS * x_block, x_block, weights,
            steps, sums, following, tokens, token_sums, scales, zeros, row_scales + token * 4, row_sums + token * 4,
            bias, y + token * 128,
        )  # fmt: skip
        if is_unusual:
            ready(usual)
        sums, token_sums, token, tokens = token_sums, sums, row // 2, count // 2
        row += count
    own, total = row_scales + token * 4, row_sums + token * 4
    _add_tokens(tokens, token_sums, scales, zeros, own, total, bias, y + token * 128)
