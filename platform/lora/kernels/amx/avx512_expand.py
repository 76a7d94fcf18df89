# mypy: allow-untyped-decorators
"""y += h B for one or two tokens of one adapter, h split into bfloat16, y in fp32, in AVX-512 registers.

The same bits as `expand.py`: a page's eight ranks are two chains of multiply-adds, of the first and of the
second numbers of h, whose sum is added to y, page after page. Rows of a page pass by side by side.
"""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..page_rows import pass_rows
from ..vector_code import FLOAT, FLOATS, INT, INT32, LANES, PAGE, VectorCode, data_of


@intrinsic
def _expand_page(
    typing: Any, arena: Any, start: Any, following: Any, outputs: Any, h: Any, y: Any, cells: Any, columns: Any
) -> Any:
    """y[cell : cell + columns] += h B for each token: its h of this page is at its address in `h`, B [PAGE,
    outputs] has its first value of these columns at `start`. Towards the end what is at `following` is brought near."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code, (_, start, following, outputs, h, _, cells, columns) = VectorCode(builder), arguments
        data, y_data = (data_of(context, builder, kind, arguments[i]) for kind, i in ((arena, 0), (y, 5)))
        tokens = len(signature.args[6])
        targets = [code.at(y_data, cell, y.dtype) for cell in cgutils.unpack_tuple(builder, cells, tokens)]
        starts = code.at(data, start, arena.dtype), code.at(data, following, arena.dtype)
        factors = []
        for source in cgutils.unpack_tuple(builder, h, tokens):
            pairs = [code.scalar(code.at(source, INT(rank), types.uint32), INT32) for rank in range(PAGE)]
            factors.append([_sides(code, pair) for pair in pairs])
        zero = ir.Constant(FLOATS, [0.0] * LANES)

        def add(rows: list[Any], position: Any, mask: Any = None) -> None:
            places = [code.at(target, position, y.dtype) for target in targets]
            chains = [[zero, zero] for _ in targets]
            for rank, row in enumerate(rows):
                weights = code.load(code.at(row, position, arena.dtype), arena.dtype, mask)
                for token, own in enumerate(chains):
                    chains[token] = [code.fma(weights, factors[token][rank][side], own[side]) for side in range(2)]
            for place, (first, second) in zip(places, chains, strict=True):
                total = builder.fadd(code.load(place, y.dtype, mask), builder.fadd(first, second))
                code.store(total, place, y.dtype, mask)

        pass_rows(code, starts, outputs, columns, arena.dtype, add)
        return context.get_dummy_value()

    return types.void(arena, types.int64, types.int64, types.int64, h, y, cells, types.int64), generate


def _sides(code: VectorCode, pair: Any) -> tuple[Any, Any]:
    """Both numbers of a pair, each in all lanes."""
    sides = code.builder.shl(pair, INT32(16)), code.builder.and_(pair, INT32(0xFFFF0000))
    first, second = (code.splat(code.builder.bitcast(side, FLOAT), FLOATS) for side in sides)
    return first, second


@njit
def expand_split(
    arena: Any, pages: Any, start: int, outputs: int, ranks: int, tokens: Any, h: Any, row: int, end: int,
    h_column: int, y: Any, y_column: int, columns: int,
) -> None:  # fmt: skip
    """y[tokens, y_column : y_column + columns] += h B for the sorted tokens row to end.

    pages: offsets in the arena of the adapter's pages, of which B's first value of these columns is `start` further. h
    goes on to whole pages, with zeros where they have no rank.
    """
    stride, width, count = h.shape[1] * 4, y.shape[1], (ranks + PAGE - 1) // PAGE
    place = h.ctypes.data + row * stride + h_column * 4
    while row < end:
        both = row + 1 < end
        cell, second = tokens[row] * width + y_column, tokens[row + both] * width + y_column
        for page in range(count):
            here, following = pages[page] + start, pages[min(page + 1, count - 1)] + start
            source = place + page * PAGE * 4
            if both:
                _expand_page(arena, here, following, outputs, (source, source + stride), y, (cell, second), columns)
            else:
                _expand_page(arena, here, following, outputs, (source,), y, (cell,), columns)
        row += 1 + both
        place += (1 + both) * stride
