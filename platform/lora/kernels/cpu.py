# mypy: allow-untyped-decorators
"""y[t] += scaling * (x[t] A^T) B over rank pages, for the CPU this runs on (numba, no compiler needed).

Two parallel sweeps: shrink, h = scale * x A^T, by (segment, kind, page); expand, y += h B, by (segment, kind, columns).
numba has no 16-bit floats: uint16 stands for bfloat16 bits, int16 for float16 bits. Each sum is one chain of fused
multiply-adds per lane in a fixed order, so a token's result does not depend on its neighbours, bit for bit.
"""

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from .expand_one import expand_one
from .vector_code import FLOAT, FLOATS, INT, LANES, LINE, PAGE, VectorCode, data_of

VECTORS: Final = 4
"""Vectors of y that expand keeps in registers for each token."""
SHRINK_TILE, EXPAND_TILE = (1, 1) if LANES == 8 else (6, 6)
"""Tokens of one tile: what the vector registers hold."""
WHOLE_PAGE: Final = 3
"""Most tokens whose sums with all ranks of a page the registers hold; of more, those with half the page."""
LONG_ROW: Final = 2048
"""Inputs from which on x is read from too far away to be read twice, for one half of a page after the other."""
COLUMNS: Final = 8 * VECTORS * LANES
"""Columns of y in one work item of expand."""
TOKENS: Final = 48
"""Most tokens of one work item; a multiple of every tile."""

AHEAD: Final = 4 * VECTORS * LANES
"""How many columns ahead expand prefetches."""


@intrinsic
def _shrink_tile(
    typing: Any, arena: Any, start: Any, following: Any, inputs: Any, x: Any, tokens: Any, scales: Any, h: Any
) -> Any:
    """h[token] [ranks] = scale * (A [ranks, inputs] at `start`) x[token]; h are addresses.

    The ranks are those of a page, or of half a page for more than WHOLE_PAGE tokens. Prefetches as much at `following`.
    """
    count = PAGE if len(tokens) <= WHOLE_PAGE else PAGE // 2

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = VectorCode(builder)
        page, ahead = (
            code.at(data_of(context, builder, arena, arguments[0]), start, arena.dtype) for start in arguments[1:3]
        )
        inputs, data = arguments[3], data_of(context, builder, x, arguments[4])
        unpacked = [cgutils.unpack_tuple(builder, value, len(tokens)) for value in arguments[5:]]
        lines = count * LANES * arena.dtype.bitwidth // 8 // LINE
        rows = [code.at(data, builder.mul(token, inputs), x.dtype) for token in unpacked[0]]
        ranks = [code.at(page, builder.mul(inputs, INT(rank)), arena.dtype) for rank in range(count)]

        def body(position: Any, sums: list[Any], mask: Any = None) -> list[Any]:
            vectors = [code.load(code.at(row, position, x.dtype), x.dtype, mask) for row in rows]
            results = []
            for rank, address in enumerate(ranks):
                weights = code.load(code.at(address, position, arena.dtype), arena.dtype, mask)
                cells = sums[rank * len(rows) : (rank + 1) * len(rows)]
                results += [code.fma(weights, vector, cell) for vector, cell in zip(vectors, cells, strict=True)]
            return results

        zeros = [ir.Constant(FLOATS, [0.0] * LANES)] * (count * len(rows))
        full = builder.sdiv(inputs, INT(LANES))

        def full_body(index: Any, sums: list[Any]) -> list[Any]:
            for line in range(lines):
                code.prefetch(
                    builder.add(ahead, builder.mul(builder.add(builder.mul(index, INT(lines)), INT(line)), INT(LINE)))
                )
            return body(builder.mul(index, INT(LANES)), sums)

        sums = code.loop(full, zeros, full_body)
        rest = builder.mul(full, INT(LANES))
        sums = body(rest, sums, code.mask(builder.sub(inputs, rest)))
        for index, value in enumerate(sums):
            rank, row = divmod(index, len(rows))
            pointer = builder.inttoptr(builder.add(unpacked[2][row], INT(rank * 4)), FLOAT.as_pointer())
            builder.store(builder.fmul(code.total(value), unpacked[1][row]), pointer)
        return context.get_dummy_value()

    return types.void(arena, types.int64, types.int64, types.int64, x, tokens, scales, h), generate


@intrinsic
def _expand_tile(
    typing: Any, arena: Any, pages: Any, start: Any, outputs: Any, ranks: Any, h: Any, y: Any, cells: Any, columns: Any
) -> Any:
    """y[cell ...] += sum over ranks of h[rank] * B[rank], for `columns` columns, at most VECTORS vectors.

    pages: addresses of the page offsets; start: from there to the first B value of the columns; cells: indices into y.
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

        def body(rank: Any, sums: list[Any]) -> list[Any]:
            page = code.scalar(code.at(pages, builder.udiv(rank, INT(PAGE)), types.int64), INT)
            row = builder.mul(builder.urem(rank, INT(PAGE)), outputs)
            weights = code.at(arena_data, builder.add(builder.add(page, start), row), arena.dtype)
            vectors = [
                code.load(code.at(weights, INT(v * LANES), arena.dtype), arena.dtype, masks[v]) for v in range(VECTORS)
            ]
            for line in range(VECTORS * LANES * arena.dtype.bitwidth // 8 // LINE):
                code.prefetch(code.at(builder.add(weights, INT(line * LINE)), INT(AHEAD), arena.dtype))
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
        return context.get_dummy_value()

    integers = [types.int64] * 4
    return types.void(arena, *integers, h, y, cells, types.int64), generate


@njit
def shrink_tokens(
    arena: Any, start: int, following: int, factor: float, scales: Any, x: Any, tokens: Any, h: Any, row: int,
    end: int, column: int,
) -> None:  # fmt: skip
    """h[row:end, column : column + PAGE] from one page, for the sorted tokens row to end."""
    inputs, stride = x.shape[1], h.shape[1] * 4
    half = PAGE // 2 * inputs
    most = SHRINK_TILE if inputs <= LONG_ROW else min(SHRINK_TILE, WHOLE_PAGE)
    place = h.ctypes.data + row * stride + column * 4
    while row < end:
        left = min(end - row, most)
        a, b, c = tokens[row], tokens[row + (left > 1)], tokens[row + left - 1]
        scale_a, scale_b = factor * scales[row], factor * scales[row + (left > 1)]
        scale_c = factor * scales[row + left - 1]
        if left == 6:
            d, e = tokens[row + 3], tokens[row + 4]
            six = (a, b, tokens[row + 2], d, e, c)
            scale_d, scale_e = factor * scales[row + 3], factor * scales[row + 4]
            factors = (scale_a, scale_b, factor * scales[row + 2], scale_d, scale_e, scale_c)
            for part in range(2):
                first = place + part * PAGE // 2 * 4
                rows = (
                    first, first + stride, first + 2 * stride, first + 3 * stride, first + 4 * stride,
                    first + 5 * stride,
                )  # fmt: skip
                _shrink_tile(arena, start + part * half, following + part * half, inputs, x, six, factors, rows)
        elif left >= 3:
            left = 3
            c, scale_c = tokens[row + 2], factor * scales[row + 2]
            places = (place, place + stride, place + 2 * stride)
            _shrink_tile(arena, start, following, inputs, x, (a, b, c), (scale_a, scale_b, scale_c), places)
        elif left == 2:
            _shrink_tile(arena, start, following, inputs, x, (a, b), (scale_a, scale_b), (place, place + stride))
        else:
            _shrink_tile(arena, start, following, inputs, x, (a,), (scale_a,), (place,))
        row += left
        place += left * stride


@njit
def _expand_tokens(
    arena: Any, pages: int, start: int, outputs: int, ranks: int, tokens: Any, h: Any, row: int, end: int,
    h_column: int, y: Any, y_column: int, columns: int,
) -> None:  # fmt: skip
    """Add to y[tokens, y_column : y_column + columns] for the sorted tokens row to end."""
    stride, width = h.shape[1] * 4, y.shape[1]
    place = h.ctypes.data + row * stride + h_column * 4
    while row < end:
        left = min(end - row, EXPAND_TILE)
        a, b = tokens[row] * width + y_column, tokens[row + (left > 1)] * width + y_column
        if left >= 4:
            c, d = tokens[row + 2] * width + y_column, tokens[row + 3] * width + y_column
            four = (place, place + stride, place + 2 * stride, place + 3 * stride)
            if left == 6:
                e, f = tokens[row + 4] * width + y_column, tokens[row + 5] * width + y_column
                six = (four[0], four[1], four[2], four[3], place + 4 * stride, place + 5 * stride)
                _expand_tile(arena, pages, start, outputs, ranks, six, y, (a, b, c, d, e, f), columns)
            else:
                left = 4
                _expand_tile(arena, pages, start, outputs, ranks, four, y, (a, b, c, d), columns)
        elif left >= 2:
            left = 2
            _expand_tile(arena, pages, start, outputs, ranks, (place, place + stride), y, (a, b), columns)
        else:
            _expand_tile(arena, pages, start, outputs, ranks, (place,), y, (a,), columns)
        row += left
        place += left * stride


@njit
def _fill_work(items: Any, starts: Any, widths: Any, step: int, first: int, last: int) -> int:
    """Fill items as far as they reach; returns how many there are."""
    count = 0
    for segment in range(first, last):
        for member in range(widths.shape[1]):
            for position in range(0, widths[segment, member], step):
                for row in range(starts[segment], starts[segment + 1], TOKENS):
                    if count < len(items):
                        items[count, 0], items[count, 1] = segment, member
                        items[count, 2], items[count, 3] = position, row
                    count += 1
    return count


@njit
def _work(starts: Any, widths: Any, step: int, first: int, last: int) -> Any:
    """Items (segment, member, position, row): each `step` of widths[segment, member], each TOKENS rows.

    Of the segments from `first` up to `last`.
    """
    items = np.empty((_fill_work(np.empty((0, 4), np.int64), starts, widths, step, first, last), 4), np.int64)
    _fill_work(items, starts, widths, step, first, last)
    return items


@njit
def _layer_of_page(offset: Any, slots: Any, kinds: Any, firsts: Any, inputs: int, layer: int, item: Any) -> int:
    """Where the A rows of a shrink item begin in the arena."""
    segment, member, position, _ = item
    outputs = firsts[member + 1] - firsts[member]
    return int(offset[slots[segment], kinds[member], position // PAGE] + layer * PAGE * (inputs + outputs))


@njit(parallel=True, cache=True)
def add_lora(
    y: Any, x: Any, layer: int, kinds: Any, firsts: Any, arena: Any, offset: Any, rank: Any, scaling: Any,
    scales: Any, sorted_tokens: Any, starts: Any, slots: Any, rounds: Any,
) -> None:  # fmt: skip
    """Arrays as in PageTable and LoraBatch, all contiguous. kinds [members]: index of each linear of the group;
    firsts [members + 1]: member m owns y's columns firsts[m] to firsts[m + 1]. A token stands once in each round."""
    inputs, room, members = x.shape[1], offset.shape[2] * PAGE, len(kinds)
    tokens = sorted_tokens.astype(np.int64)
    h = np.empty((len(tokens), members * room), np.float32)
    ranks, widths = np.empty((len(slots), members), np.int64), np.empty((len(slots), members), np.int64)
    for segment in range(len(slots)):
        for member in range(members):
            ranks[segment, member] = rank[slots[segment], kinds[member], layer]
            widths[segment, member] = (firsts[member + 1] - firsts[member]) * (ranks[segment, member] > 0)

    shrinks = _work(starts, ranks, PAGE, 0, len(slots))
    for index in prange(len(shrinks)):
        segment, member = shrinks[index, 0], shrinks[index, 1]
        position, row = shrinks[index, 2], shrinks[index, 3]
        start = _layer_of_page(offset, slots, kinds, firsts, inputs, layer, shrinks[index])
        following = _layer_of_page(
            offset, slots, kinds, firsts, inputs, layer, shrinks[min(index + 1, len(shrinks) - 1)]
        )
        end = min(row + TOKENS, starts[segment + 1])
        factor = scaling[slots[segment], kinds[member], layer]
        shrink_tokens(
            arena, start, following, factor, scales, x, tokens, h, row, end, member * room + position
        )  # fmt: skip

    for number in range(len(rounds) - 1):
        expands = _work(starts, widths, COLUMNS, rounds[number], rounds[number + 1])
        for index in prange(len(expands)):
            segment, member = expands[index, 0], expands[index, 1]
            position, row = expands[index, 2], expands[index, 3]
            width, first = widths[segment, member], firsts[member]
            pages = offset[slots[segment], kinds[member]].ctypes.data
            start = PAGE * (layer * (inputs + width) + inputs)
            end = min(row + TOKENS, starts[segment + 1])
            if end - row == 1 and y.itemsize == 4:
                expand_one(
                    arena, offset[slots[segment], kinds[member]], start + position, width, ranks[segment, member], h,
                    row, member * room, y, tokens[row], first + position, min(COLUMNS, width - position),
                )  # fmt: skip
            else:
                for column in range(position, min(position + COLUMNS, width), VECTORS * LANES):
                    _expand_tokens(
                        arena, pages, start + column, width, ranks[segment, member], tokens, h, row, end,
                        member * room, y, first + column, min(VECTORS * LANES, width - column),
                    )  # fmt: skip
