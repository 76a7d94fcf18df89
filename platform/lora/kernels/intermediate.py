# mypy: allow-untyped-decorators
"""h = scale * x A^T on its way from shrink to expand, chosen as kernels are compiled: fp32, or, where the processor has
matrix registers, for bfloat16 adapters and y in fp32, pairs of bfloat16 numbers that add up (`VectorCode.split`).

Products in matrix registers add up in an order of their own, which vectors follow for tokens that fill no register.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from . import shrink_page
from .amx import avx512_expand, avx512_shrink
from .amx.expand import expand_block, neighbours
from .amx.registers import HAS_MATRIX, ROWS
from .amx.shrink import shrink_block
from .expand_one import expand_one
from .expand_tile import VECTORS, expand_tokens
from .vector_code import LANES


def _is_split(h: Any) -> bool:
    return bool(h.dtype == types.uint32)


def new_intermediate(arena: Any, y: Any, rows: int, columns: int) -> Any:
    """h [rows, columns]. As with all functions here that do nothing: compiled code calls what is chosen below."""
    raise AssertionError


@overload(new_intermediate)
def _new_intermediate(arena: Any, y: Any, rows: int, columns: int) -> Any:
    dtype = np.uint32 if HAS_MATRIX and arena.dtype == types.uint16 and y.dtype == types.float32 else np.float32

    def make(arena: Any, y: Any, rows: int, columns: int) -> Any:
        return np.empty((rows, columns), dtype)

    return make


def count_in_registers(h: Any, tokens: int) -> int:
    """Of so many tokens of one adapter, those that matrix registers take."""
    raise AssertionError


@overload(count_in_registers)
def _count_in_registers(h: Any, tokens: int) -> Any:
    rows = ROWS if _is_split(h) else 0

    def count(h: Any, tokens: int) -> int:
        return tokens // rows * rows if rows else 0

    return count


def shrink_registers(
    arena: Any, offset: Any, slots: Any, kinds: Any, firsts: Any, layer: int, scaling: Any, scales: Any, ranks: Any,
    x: Any, tokens: Any, h: Any, item: Any, scratch: int,
) -> None:  # fmt: skip
    """As amx.shrink.shrink_block."""
    raise AssertionError


@overload(shrink_registers)
def _shrink_registers(
    arena: Any, offset: Any, slots: Any, kinds: Any, firsts: Any, layer: int, scaling: Any, scales: Any, ranks: Any,
    x: Any, tokens: Any, h: Any, item: Any, scratch: int,
) -> Any:  # fmt: skip
    def never(
        arena: Any, offset: Any, slots: Any, kinds: Any, firsts: Any, layer: int, scaling: Any, scales: Any, ranks: Any,
        x: Any, tokens: Any, h: Any, item: Any, scratch: int,
    ) -> None:  # fmt: skip
        pass

    return shrink_block.py_func if _is_split(h) else never


def shrink_tokens(
    arena: Any, start: int, following: int, factor: float, scales: Any, x: Any, tokens: Any, h: Any, row: int,
    end: int, column: int,
) -> None:  # fmt: skip
    """h[row:end, column : column + PAGE] from one page, for the sorted tokens row to end, in vectors."""
    raise AssertionError


@overload(shrink_tokens)
def _shrink_tokens(
    arena: Any, start: int, following: int, factor: float, scales: Any, x: Any, tokens: Any, h: Any, row: int,
    end: int, column: int,
) -> Any:  # fmt: skip
    return (avx512_shrink if _is_split(h) else shrink_page).shrink_tokens.py_func


def expand_columns(
    arena: Any, pages: Any, start: int, outputs: int, ranks: int, tokens: Any, h: Any, row: int, end: int,
    h_column: int, y: Any, y_column: int, columns: int,
) -> None:  # fmt: skip
    """y[tokens, y_column : y_column + columns] += h B for the sorted tokens row to end, as expand_split."""
    raise AssertionError


@overload(expand_columns)
def _expand_columns(
    arena: Any, pages: Any, start: int, outputs: int, ranks: int, tokens: Any, h: Any, row: int, end: int,
    h_column: int, y: Any, y_column: int, columns: int,
) -> Any:  # fmt: skip
    return _expand_split if _is_split(h) else _expand_floats


def expand_apart(
    arena: Any, pages: Any, start: int, outputs: int, ranks: int, token: int, h: Any, row: int, count: int,
    h_column: int, y: Any, y_column: int, room: Any, room_column: int, columns: int,
) -> bool:  # fmt: skip
    """room[:count, room_column : room_column + columns] = y[token : token + count, y_column :] + h B.

    False where that takes more than registers.
    """
    raise AssertionError


@overload(expand_apart)
def _expand_apart(
    arena: Any, pages: Any, start: int, outputs: int, ranks: int, token: int, h: Any, row: int, count: int,
    h_column: int, y: Any, y_column: int, room: Any, room_column: int, columns: int,
) -> Any:  # fmt: skip
    def never(
        arena: Any, pages: Any, start: int, outputs: int, ranks: int, token: int, h: Any, row: int, count: int,
        h_column: int, y: Any, y_column: int, room: Any, room_column: int, columns: int,
    ) -> bool:  # fmt: skip
        return False

    return _expand_split_apart if _is_split(h) else never


def _expand_split_apart(
    arena: Any, pages: Any, start: int, outputs: int, ranks: int, token: int, h: Any, row: int, count: int,
    h_column: int, y: Any, y_column: int, room: Any, room_column: int, columns: int,
) -> bool:  # fmt: skip
    if count % ROWS or columns % ROWS:
        return False
    target, pitch = room.ctypes.data + room_column * 4, room.shape[1] * 4
    expand_block(
        arena, pages, start, outputs, ranks, token, h, row, count, h_column, y, y_column, columns, target, pitch
    )
    return True


def _expand_floats(
    arena: Any, pages: Any, start: int, outputs: int, ranks: int, tokens: Any, h: Any, row: int, end: int,
    h_column: int, y: Any, y_column: int, columns: int,
) -> None:  # fmt: skip
    if end - row == 1 and y.itemsize == 4:
        expand_one(arena, pages, start, outputs, ranks, h, row, h_column, y, tokens[row], y_column, columns)
        return
    for column in range(0, columns, VECTORS * LANES):
        expand_tokens(
            arena, pages.ctypes.data, start + column, outputs, ranks, tokens, h, row, end, h_column, y,
            y_column + column, min(VECTORS * LANES, columns - column),
        )  # fmt: skip


def _expand_split(
    arena: Any, pages: Any, start: int, outputs: int, ranks: int, tokens: Any, h: Any, row: int, end: int,
    h_column: int, y: Any, y_column: int, columns: int,
) -> None:  # fmt: skip
    whole = columns // ROWS * ROWS
    while row < end:
        count = neighbours(tokens, row, end) if whole else 0
        if count:
            target = y.ctypes.data + (tokens[row] * y.shape[1] + y_column) * 4
            expand_block(
                arena, pages, start, outputs, ranks, tokens[row], h, row, count, h_column, y, y_column, whole, target,
                y.shape[1] * 4,
            )  # fmt: skip
            if whole < columns:
                avx512_expand.expand_split(
                    arena, pages, start + whole, outputs, ranks, tokens, h, row, row + count, h_column, y,
                    y_column + whole, columns - whole,
                )  # fmt: skip
        else:
            count = min(2, end - row) if end - row > ROWS else end - row
            avx512_expand.expand_split(
                arena, pages, start, outputs, ranks, tokens, h, row, row + count, h_column, y, y_column, columns
            )
        row += count
