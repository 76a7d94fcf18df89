# mypy: allow-untyped-decorators
"""y += h B for some tokens of one adapter, on the CPU this runs on: a tile of columns for a tile of tokens at a time.

Each sum is one chain of fused multiply-adds in the order of the ranks, so a token's result does not depend on its
neighbours, bit for bit.
"""

from typing import Any, Final

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .vector_code import FLOAT, FLOATS, INT, LANES, LINE, PAGE, VectorCode, data_of

VECTORS: Final = 2 if LANES == 8 else 4
"""Vectors of y that are in registers for each token."""
TILE: Final = 6
"""Tokens of one tile: what the vector registers hold."""
AHEAD: Final = 4 * VECTORS * LANES
"""How many columns ahead B is prefetched."""


@intrinsic
def _expand_tile(
    typing: Any, arena: Any, pages: Any, start: Any, outputs: Any, ranks: Any, h: Any, y: Any, cells: Any, columns: Any,
    pitch: Any,
) -> Any:  # fmt: skip
    """y[cell ...] += sum over ranks of h[rank] * B[rank], for `columns` columns, at most VECTORS vectors.

    pages: addresses of the page offsets; start: from there to the first B value of the columns; cells: indices into y;
    pitch: bytes of a row of y.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = VectorCode(builder)
        _, pages, start, outputs, ranks = arguments[:5]
        arena_data, y_data = (data_of(context, builder, kind, arguments[i]) for kind, i in ((arena, 0), (y, 6)))
        columns = arguments[8]
        sources = cgutils.unpack_tuple(builder, arguments[5], len(cells))
        targets = [code.at(y_data, cell, y.dtype) for cell in cgutils.unpack_tuple(builder, arguments[7], len(cells))]
        masks = [code.mask(builder.sub(columns, INT(v * LANES))) for v in range(VECTORS)]

        def places(target: Any) -> list[Any]:
            return [code.at(target, INT(v * LANES), y.dtype) for v in range(VECTORS)]

        def add(masks: list[Any]) -> None:
            def body(rank: Any, sums: list[Any]) -> list[Any]:
                page = code.scalar(code.at(pages, builder.udiv(rank, INT(PAGE)), types.int64), INT)
                row = builder.mul(builder.urem(rank, INT(PAGE)), outputs)
                weights = code.at(arena_data, builder.add(builder.add(page, start), row), arena.dtype)
                vectors = [
                    code.load(code.at(weights, INT(v * LANES), arena.dtype), arena.dtype, masks[v])
                    for v in range(VECTORS)
                ]
                for line in range(0, VECTORS * LANES * arena.dtype.bitwidth // 8, LINE):
                    code.prefetch(code.at(builder.add(weights, INT(line)), INT(AHEAD), arena.dtype))
                factors = [code.splat(code.scalar(code.at(s, rank, types.float32), FLOAT), FLOATS) for s in sources]
                return [
                    code.fma(vectors[v], factor, sums[index * VECTORS + v])
                    for index, factor in enumerate(factors)
                    for v in range(VECTORS)
                ]

            initial = [
                code.load(place, y.dtype, mask) for t in targets for place, mask in zip(places(t), masks, strict=True)
            ]
            sums = code.loop(ranks, initial, body)
            for index, target in enumerate(targets):
                for v, place in enumerate(places(target)):
                    code.store(sums[index * VECTORS + v], place, y.dtype, masks[v])

        if len(cells) == TILE:
            # The tokens of a prompt follow each other: those of the next tile begin where this one's end.
            for target in targets:
                later = builder.add(target, builder.mul(arguments[9], INT(len(cells))))
                for line in range(VECTORS * LANES * y.dtype.bitwidth // 8 // LINE):
                    code.prefetch_near(builder.add(later, INT(line * LINE)))
        code.masked_or_whole(builder.icmp_signed("<", columns, INT(VECTORS * LANES)), add, masks)
        return context.get_dummy_value()

    integers = [types.int64] * 4
    return types.void(arena, *integers, h, y, cells, types.int64, types.int64), generate


@njit
def expand_tokens(
    arena: Any, pages: int, start: int, outputs: int, ranks: int, tokens: Any, h: Any, row: int, end: int,
    h_column: int, y: Any, y_column: int, columns: int,
) -> None:  # fmt: skip
    """Add to y[tokens, y_column : y_column + columns] for the sorted tokens row to end."""
    stride, width = h.shape[1] * 4, y.shape[1]
    pitch = width * y.itemsize
    place = h.ctypes.data + row * stride + h_column * 4
    while row < end:
        left = min(end - row, TILE)
        a, b = tokens[row] * width + y_column, tokens[row + (left > 1)] * width + y_column
        if left >= 4:
            c, d = tokens[row + 2] * width + y_column, tokens[row + 3] * width + y_column
            four = (place, place + stride, place + 2 * stride, place + 3 * stride)
            if left == 6:
                e, f = tokens[row + 4] * width + y_column, tokens[row + 5] * width + y_column
                six = (four[0], four[1], four[2], four[3], place + 4 * stride, place + 5 * stride)
                _expand_tile(arena, pages, start, outputs, ranks, six, y, (a, b, c, d, e, f), columns, pitch)
            else:
                left = 4
                _expand_tile(arena, pages, start, outputs, ranks, four, y, (a, b, c, d), columns, pitch)
        elif left >= 2:
            left = 2
            _expand_tile(arena, pages, start, outputs, ranks, (place, place + stride), y, (a, b), columns, pitch)
        else:
            _expand_tile(arena, pages, start, outputs, ranks, (place,), y, (a,), columns, pitch)
        row += left
        place += left * stride
