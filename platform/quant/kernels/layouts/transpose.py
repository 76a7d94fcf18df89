# mypy: allow-untyped-decorators
"""Activations as the tiles read them: the inputs of a tile's rows side by side."""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from ..instructions.vectors import FLOATS, INT, LANES, NO_LANES, WORDS, Code


@njit
def pack_rows(
    x: int, factors: int, packed: int, used: int, rows: int, inputs: int, first: int, count: int
) -> None:  # fmt: skip
    """packed [inputs, rows] = x [used, inputs], times factors [inputs] unless they are 0, transposed, for the inputs
    first to first + count.

    Rows from `used` on, and inputs from `inputs` on, are zeros.
    """
    for row in range(0, rows, LANES):
        for k in range(first, first + count, LANES):
            source, target = x + (row * inputs + k) * 4, packed + (k * rows + row) * 4
            left, wanted = inputs - k, first + count - k
            if factors:
                own = factors + k * 4
                _transpose(1, source, own, inputs, used - row, left, target, rows, rows - row, wanted)
            else:
                _transpose(0, source, factors, inputs, used - row, left, target, rows, rows - row, wanted)


@intrinsic(prefer_literal=True)
def _transpose(
    typing: Any, scaled: Any, source: Any, factors: Any, stride: Any, rows: Any, inputs: Any, target: Any,
    target_stride: Any, targets: Any, target_inputs: Any,
) -> Any:  # fmt: skip
    """target [target_inputs, targets] = source [rows, inputs], if `scaled` (literal) times factors [inputs],
    transposed, all cut at LANES; zeros past the source."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, source, factors, stride, rows, inputs, target, target_stride, targets, target_inputs = arguments
        code = Code(builder)

        def line(start: Any, stride: Any, index: int) -> Any:
            return code.pointer(builder.add(start, builder.mul(stride, INT(index * 4))), 0, FLOATS)

        def mask(index: int, limit: Any, lanes: Any) -> Any:
            return builder.select(builder.icmp_signed("<", INT(index), limit), lanes, NO_LANES)

        readable, writable = code.lanes_below(inputs), code.lanes_below(targets)
        square = [code.masked_load(line(source, stride, row), mask(row, rows, readable)) for row in range(LANES)]
        if scaled.literal_value:
            own = code.masked_load(code.pointer(factors, 0, FLOATS), readable)
            square = [builder.fmul(value, own) for value in square]
        for k, value in enumerate(_transposed(builder, square)):
            code.masked_store(value, line(target, target_stride, k), mask(k, target_inputs, writable))
        return context.get_dummy_value()

    return types.void(scaled, *[types.int64] * 9), generate


def _transposed(builder: Any, square: list[Any]) -> list[Any]:
    """Swap the off-diagonal quarters, then those of each quarter, down to single lanes."""
    square = list(square)
    step = LANES // 2
    while step:
        upper = [lane if not lane & step else LANES + lane - step for lane in range(LANES)]
        lower = [lane + step if not lane & step else LANES + lane for lane in range(LANES)]
        for row in range(LANES):
            if not row & step:
                pair = square[row], square[row + step]
                for index, order in ((row, upper), (row + step, lower)):
                    square[index] = builder.shuffle_vector(*pair, ir.Constant(WORDS, order))
        step //= 2
    return square
