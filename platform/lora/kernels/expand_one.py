# mypy: allow-untyped-decorators
"""y += h B for one token and y in fp32, as in decode over many adapters: rows of a page pass by side by side, eight
streams that nothing waits for. The order of each sum is that of `cpu.py`'s tiles, bit for bit.
"""

from typing import Any

from numba import njit, types
from numba.extending import intrinsic

from .page_rows import pass_rows
from .vector_code import FLOAT, FLOATS, INT, PAGE, VectorCode, data_of


@intrinsic
def _expand_page(
    typing: Any, arena: Any, start: Any, following: Any, outputs: Any, h: Any, y: Any, cell: Any, columns: Any
) -> Any:
    """y[cell : cell + columns] += h [PAGE] at this address times B [PAGE, outputs], whose first value of these columns
    is at `start`. Towards the end it brings near what is at `following`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code, (_, start, following, outputs, h, _, cell, columns) = VectorCode(builder), arguments
        data = data_of(context, builder, arena, arguments[0])
        target = code.at(data_of(context, builder, y, arguments[5]), cell, y.dtype)
        starts = code.at(data, start, arena.dtype), code.at(data, following, arena.dtype)
        factors = [code.splat(code.scalar(code.at(h, INT(rank), types.float32), FLOAT), FLOATS) for rank in range(PAGE)]

        def add(rows: list[Any], position: Any, mask: Any = None) -> None:
            place = code.at(target, position, y.dtype)
            total = code.load(place, y.dtype, mask)
            for row, factor in zip(rows, factors, strict=True):
                total = code.fma(code.load(code.at(row, position, arena.dtype), arena.dtype, mask), factor, total)
            code.store(total, place, y.dtype, mask)

        pass_rows(code, starts, outputs, columns, arena.dtype, add)
        return context.get_dummy_value()

    return types.void(arena, types.int64, types.int64, types.int64, types.int64, y, types.int64, types.int64), generate


@njit
def expand_one(
    arena: Any, pages: Any, start: int, outputs: int, ranks: int, h: Any, row: int, h_column: int, y: Any, token: int,
    column: int, columns: int,
) -> None:  # fmt: skip
    """y[token, column : column + columns] += h[row, h_column : h_column + ranks] B.

    pages: offsets in the arena of the adapter's pages, of which B's first value of these columns is `start` further. h
    goes on to whole pages, with zeros where they have no rank.
    """
    place, cell = h.ctypes.data + (row * h.shape[1] + h_column) * 4, token * y.shape[1] + column
    count = (ranks + PAGE - 1) // PAGE
    for page in range(count):
        here, following = pages[page] + start, pages[min(page + 1, count - 1)] + start
        _expand_page(arena, here, following, outputs, place + page * PAGE * 4, y, cell, columns)
