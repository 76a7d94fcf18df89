# mypy: allow-untyped-decorators
"""Matrix registers of the CPU this runs on, Intel's AMX: up to 16 rows of 64 bytes, multiplied as a whole.

A product of pairs of bfloat16 adds two chains of multiply-adds to each sum, that of the first and that of the second
numbers of its pairs, each from zero on (Intel's description of TDPBF16PS, and seen so): vectors can add up the same.
"""

import ctypes
import platform
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..vector_code import FEATURES, INT, LANES

ROWS: Final = 16
"""Most rows of a register, and numbers of fp32 in one."""
ROW_BYTES: Final = 64
BYTES: Final = ROWS * ROW_BYTES
SUMS, WEIGHTS = 0, 4
"""Numbers of the first register of sums and of that of a product's second factor."""
INPUTS: Final = (5, 6, 7)
"""Those of the first factor, in turn."""
ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18
INT8: Final = ir.IntType(8)


def _may_use() -> bool:
    """Linux gives a process the registers when it asks; another kernel, or a container, says no on the same CPU."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    return bool(ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0)


HAS_MATRIX: Final = LANES == 16 and {"+amx-bf16", "+avx512bf16"} <= set(FEATURES.split(",")) and _may_use()


def configuration(pairs: int) -> np.ndarray:
    """[64] uint8: ROWS rows of sums and of `pairs` pairs of inputs, `pairs` rows of weights."""
    numbers = np.zeros(64, np.uint8)
    numbers[0] = 1
    numbers[16:32:2], numbers[48:56] = ROW_BYTES, ROWS
    numbers[48 + WEIGHTS] = pairs
    for register in INPUTS:
        numbers[16 + 2 * register] = 4 * pairs
    return numbers


def call(builder: Any, name: str, *arguments: Any) -> None:
    function_type = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    builder.call(cgutils.get_or_insert_function(builder.module, function_type, f"llvm.x86.{name}"), arguments)


def load(builder: Any, register: int, address: Any, pitch: Any) -> None:
    call(builder, "tileloadd64", INT8(register), builder.inttoptr(address, INT8.as_pointer()), pitch)


def store(builder: Any, register: int, address: Any, pitch: Any) -> None:
    call(builder, "tilestored64", INT8(register), builder.inttoptr(address, INT8.as_pointer()), pitch)


def clear(builder: Any, register: int) -> None:
    call(builder, "tilezero", INT8(register))


def multiply(builder: Any, sums: int, inputs: int, weights: int) -> None:
    call(builder, "tdpbf16ps", INT8(sums), INT8(inputs), INT8(weights))


@intrinsic
def configure(typing: Any, configuration: Any) -> Any:
    """Ready the registers of this thread: the address of a `configuration`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        call(builder, "ldtilecfg", builder.inttoptr(arguments[0], INT8.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def release(typing: Any) -> Any:
    """Done: the system need not save the registers any more."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


def each_below(builder: Any, count: Any, most: int, write: Any) -> None:
    """write(number) for each number below `count`, which is at most `most`: a register cannot be chosen later."""
    for number in range(most):
        with builder.if_then(builder.icmp_signed(">", count, INT(number))):
            write(number)
