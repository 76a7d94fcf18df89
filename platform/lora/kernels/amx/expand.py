# mypy: allow-untyped-decorators
"""y += h B for runs of 16 tokens of one adapter that follow each other, h split into bfloat16, y in fp32, in matrix
registers.

Both numbers of a pair of h meet the same weight, which stands twice in a pair. The order of sums: a page's eight ranks
are one product.
"""

from typing import Any, Final

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..vector_code import INT, PAGE, SHORTS, WORDS, VectorCode, data_of, words
from .registers import INPUTS, ROW_BYTES, ROWS, SUMS, WEIGHTS, configuration, configure, load, multiply, release, store

TILES: Final = 4
"""Most runs of 16 tokens at a time."""
PAGES: Final = 4
"""Whose weights are near at a time."""
COLUMNS: Final = 8 * ROWS
"""Of them."""
PAGE_BYTES: Final = PAGE * ROW_BYTES
"""Of 16 columns."""
CONFIGURATION: Final = configuration(PAGE)


@intrinsic
def _expand_pages(
    typing: Any, arena: Any, pages: Any, count: Any, start: Any, outputs: Any, h: Any, h_pitch: Any, y: Any, pitch: Any,
    target: Any, target_pitch: Any, tiles: Any, blocks: Any, from_afar: Any,
) -> Any:  # fmt: skip
    """target [16 * tiles, 16 * blocks] = y + h B over `count` pages, at most PAGES; blocks: at most COLUMNS // 16.

    pages, h, y, target: addresses, of the pages' offsets in the arena, of the first of these pairs and of the sums;
    start: of B's first value of these columns, after the offset; pitches: bytes; from_afar: 1 if the rows of y
    that come next are to be brought near, too far apart for the processor to foresee them, else 0.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, pages, count, start, outputs, h, h_pitch, y, pitch, target, target_pitch, tiles, blocks, from_afar = (
            arguments
        )
        code, data = VectorCode(builder), data_of(context, builder, arena, arguments[0])
        room = cgutils.alloca_once(builder, ir.ArrayType(ir.IntType(8), COLUMNS // ROWS * PAGES * PAGE_BYTES))
        room.align = ROW_BYTES
        packed = builder.ptrtoint(room, INT)

        def weights_of(block: Any, page: Any) -> Any:
            number = builder.add(builder.mul(block, INT(PAGES)), page)
            return builder.add(packed, builder.mul(number, INT(PAGE_BYTES)))

        with cgutils.for_range(builder, count, intp=INT) as page_loop:
            offset = code.scalar(code.at(pages, page_loop.index, types.int64), INT)
            first = builder.add(offset, start)
            with cgutils.for_range(builder, blocks, intp=INT) as block_loop:
                column = builder.add(first, builder.mul(block_loop.index, INT(ROWS)))
                weights = weights_of(block_loop.index, page_loop.index)
                for rank in range(PAGE):
                    address = code.at(data, builder.add(column, builder.mul(outputs, INT(rank))), arena.dtype)
                    shorts = builder.load(builder.inttoptr(address, SHORTS.as_pointer()))
                    shorts.align = 2
                    value = builder.zext(shorts, WORDS)
                    twice = builder.or_(value, builder.shl(value, words(16)))
                    place = builder.add(weights, INT(rank * ROW_BYTES))
                    builder.store(twice, builder.inttoptr(place, WORDS.as_pointer()), align=ROW_BYTES)
        # One register of rows after the other: they may be so far apart that more of them crowd out each other.
        with cgutils.for_range(builder, tiles, intp=INT) as tile_loop:
            first_row = builder.mul(tile_loop.index, INT(ROWS))
            own = builder.add(h, builder.mul(h_pitch, first_row))
            source, result = (
                builder.add(base, builder.mul(base_pitch, first_row))
                for base, base_pitch in ((y, pitch), (target, target_pitch))
            )
            with cgutils.for_range(builder, blocks, intp=INT) as block_loop:
                column = builder.mul(block_loop.index, INT(ROW_BYTES))
                load(builder, SUMS, builder.add(source, column), pitch)
                with builder.if_then(builder.icmp_signed("!=", from_afar, INT(0))):
                    for row in range(ROWS, 2 * ROWS):
                        code.prefetch(builder.add(builder.add(source, column), builder.mul(pitch, INT(row))))
                with cgutils.for_range(builder, count, intp=INT) as page_loop:
                    load(builder, WEIGHTS, weights_of(block_loop.index, page_loop.index), INT(ROW_BYTES))
                    load(builder, INPUTS[0], builder.add(own, builder.mul(page_loop.index, INT(PAGE * 4))), h_pitch)
                    multiply(builder, SUMS, INPUTS[0], WEIGHTS)
                store(builder, SUMS, builder.add(result, column), target_pitch)
        return context.get_dummy_value()

    return types.void(arena, *[types.int64] * 13), generate


@njit
def neighbours(tokens: Any, row: int, end: int) -> int:
    """How many of the sorted tokens from `row` on, up to `end`, follow each other: in whole registers, at most TILES
    of them."""
    for tiles in range(TILES, 0, -1):
        last = row + tiles * ROWS - 1
        if last < end and tokens[last] - tokens[row] == last - row:
            return tiles * ROWS
    return 0


@njit
def expand_block(
    arena: Any, pages: Any, start: int, outputs: int, ranks: int, token: int, h: Any, row: int, count: int,
    h_column: int, y: Any, y_column: int, columns: int, target: int, target_pitch: int,
) -> None:  # fmt: skip
    """y[token : token + count, y_column : y_column + columns] + h B to the address `target`, rows `target_pitch` bytes
    apart; columns in whole registers, count in whole ones and at most TILES, the others as in expand_split."""
    stride, pitch, all_pages = h.shape[1] * 4, y.shape[1] * 4, (ranks + PAGE - 1) // PAGE
    source = h.ctypes.data + row * stride + h_column * 4
    sums = y.ctypes.data + token * pitch + y_column * 4
    configure(CONFIGURATION.ctypes.data)
    for column in range(0, columns, COLUMNS):
        blocks = min(COLUMNS, columns - column) // ROWS
        for page in range(0, all_pages, PAGES):
            pages_left = all_pages - page
            _expand_pages(
                arena, pages.ctypes.data + page * 8, min(PAGES, pages_left), start + column, outputs,
                source + page * PAGE * 4, stride,
                (sums if page == 0 else target) + column * 4, pitch if page == 0 else target_pitch,
                target + column * 4, target_pitch, count // ROWS, blocks, 1 if page == 0 else 0,
            )  # fmt: skip
    release()
