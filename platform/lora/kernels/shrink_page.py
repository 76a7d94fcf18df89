# mypy: allow-untyped-decorators
"""h = scale * x A^T for some tokens and the ranks of one page, on the CPU this runs on.

Each sum is one chain of multiply-adds per lane in a fixed order, so a token's result does not depend on its neighbours,
bit for bit. Where the processor has dot products of bfloat16 and A is stored so, x is rounded to bfloat16 too, as the
base's linears do there; sums are fp32.
"""

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .vector_code import FLOATS, HAS_BFLOAT16, INT, LANES, LINE, PAGE, VectorCode, data_of

SHRINK_TILE: Final = 3 if LANES == 8 else 6
"""Tokens of one tile: what the vector registers hold."""
WHOLE_PAGE: Final = SHRINK_TILE // 2
"""Most tokens whose sums with all ranks of a page the registers hold; of more, those with half the page."""
LONG_ROW: Final = 8192 if LANES == 16 else 1 << 30
"""Inputs from which on x is read from too far away to be read twice, for one half of a page after the other. Shorter
vectors take so long to multiply that it never is."""


def _takes_pairs(arena: Any) -> bool:
    return bool(HAS_BFLOAT16 and arena.dtype == types.uint16)


class _Rows:
    """Reads A and x, and multiplies: `width` inputs at a time."""

    def __init__(self, code: VectorCode, arena: Any, x: Any) -> None:
        self.code, self.arena, self.x = code, arena.dtype, x.dtype
        self.pairs = _takes_pairs(arena)
        self.width = 2 * LANES if self.pairs else LANES

    def mask(self, count: Any) -> Any:
        """For the last inputs, fewer than `width`."""
        return self.code.pair_masks(count) if self.pairs else self.code.mask(count)

    def inputs(self, address: Any, mask: Any) -> Any:
        if self.pairs:
            return self.code.load_rounded(address, self.x, mask)
        return self.code.load(address, self.x, mask)

    def weights(self, address: Any, mask: Any) -> Any:
        if self.pairs:
            return self.code.load_pairs(address, mask and mask[1])
        return self.code.load(address, self.arena, mask)

    @property
    def add(self) -> Callable[[Any, Any, Any], Any]:
        """(weights, inputs, sums): sums + weights * inputs."""
        return self.code.dot if self.pairs else self.code.fma


@intrinsic
def _shrink_tile(
    typing: Any, arena: Any, start: Any, following: Any, inputs: Any, x: Any, tokens: Any, scales: Any, h: Any,
    part: Any,
) -> Any:  # fmt: skip
    """h[token] [ranks] = scale * (A [ranks, inputs] at `start`) x[token]; h are addresses of the page's first rank.

    The ranks are those of a page, or of its half `part` for more than WHOLE_PAGE tokens. Prefetches as much at
    `following`.
    """
    count = PAGE if len(tokens) <= WHOLE_PAGE else PAGE // 2

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = VectorCode(builder)
        inputs, part, data = arguments[3], arguments[8], data_of(context, builder, x, arguments[4])
        above = builder.mul(part, builder.mul(inputs, INT(count)))
        page, ahead = (
            code.at(data_of(context, builder, arena, arguments[0]), builder.add(start, above), arena.dtype)
            for start in arguments[1:3]
        )
        unpacked = [cgutils.unpack_tuple(builder, value, len(tokens)) for value in arguments[5:8]]
        rows = _Rows(code, arena, x)
        lines = count * rows.width * arena.dtype.bitwidth // 8 // LINE
        xs = [code.at(data, builder.mul(token, inputs), x.dtype) for token in unpacked[0]]
        ranks = [code.at(page, builder.mul(inputs, INT(rank)), arena.dtype) for rank in range(count)]

        def body(position: Any, sums: list[Any], mask: Any = None) -> list[Any]:
            vectors = [rows.inputs(code.at(row, position, x.dtype), mask) for row in xs]
            results = []
            for rank, address in enumerate(ranks):
                weights = rows.weights(code.at(address, position, arena.dtype), mask)
                cells = sums[rank * len(xs) : (rank + 1) * len(xs)]
                results += [rows.add(weights, vector, cell) for vector, cell in zip(vectors, cells, strict=True)]
            return results

        zeros = [ir.Constant(FLOATS, [0.0] * LANES)] * (count * len(xs))
        full = builder.sdiv(inputs, INT(rows.width))

        def full_body(index: Any, sums: list[Any]) -> list[Any]:
            first = builder.mul(index, INT(lines))
            for line in range(lines):
                code.prefetch(builder.add(ahead, builder.mul(builder.add(first, INT(line)), INT(LINE))))
            return body(builder.mul(index, INT(rows.width)), sums)

        sums = code.loop(full, zeros, full_body)
        rest = builder.mul(full, INT(rows.width))
        mask = rows.mask(builder.sub(inputs, rest))
        some = builder.zext(builder.icmp_signed("<", rest, inputs), INT)
        sums = code.loop(some, sums, lambda _, sums: body(rest, sums, mask))
        for row in range(len(xs)):
            place = builder.add(unpacked[2][row], builder.mul(part, INT(4 * count)))
            for total in code.totals(sums[row :: len(xs)]):
                scaled = builder.fmul(total, code.splat(unpacked[1][row], total.type))
                builder.store(scaled, builder.inttoptr(place, total.type.as_pointer()), align=4)
                place = builder.add(place, INT(4 * total.type.count))
        return context.get_dummy_value()

    return types.void(arena, types.int64, types.int64, types.int64, x, tokens, scales, h, types.int64), generate


@njit
def _shrink_page(
    arena: Any, start: int, following: int, inputs: int, x: Any, tokens: Any, factors: Any, places: Any
) -> None:
    """As _shrink_tile, all ranks of a page."""
    for part in range(1 if len(tokens) <= WHOLE_PAGE else 2):
        _shrink_tile(arena, start, following, inputs, x, tokens, factors, places, part)


@intrinsic
def _most_tokens(typing: Any, arena: Any, inputs: Any) -> Any:
    """Of one tile."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        few = INT(min(SHRINK_TILE, WHOLE_PAGE))
        if _takes_pairs(arena):
            return few
        return builder.select(builder.icmp_signed(">", arguments[1], INT(LONG_ROW)), few, INT(SHRINK_TILE))

    return types.int64(arena, types.int64), generate


@njit
def shrink_tokens(
    arena: Any, start: int, following: int, factor: float, scales: Any, x: Any, tokens: Any, h: Any, row: int,
    end: int, column: int,
) -> None:  # fmt: skip
    """h[row:end, column : column + PAGE] from one page, for the sorted tokens row to end."""
    inputs, stride = x.shape[1], h.shape[1] * 4
    most = _most_tokens(arena, inputs)
    place = h.ctypes.data + row * stride + column * 4
    while row < end:
        left = min(end - row, most)
        a, b, c = tokens[row], tokens[row + (left > 1)], tokens[row + left - 1]
        scale_a, scale_b = factor * scales[row], factor * scales[row + (left > 1)]
        scale_c = factor * scales[row + left - 1]
        if left == 6:
            six = (a, b, tokens[row + 2], tokens[row + 3], tokens[row + 4], c)
            factors = (
                scale_a, scale_b, factor * scales[row + 2], factor * scales[row + 3], factor * scales[row + 4], scale_c,
            )  # fmt: skip
            places = (
                place, place + stride, place + 2 * stride, place + 3 * stride, place + 4 * stride, place + 5 * stride,
            )  # fmt: skip
            _shrink_page(arena, start, following, inputs, x, six, factors, places)
        elif left >= 3:
            left = 3
            c, scale_c = tokens[row + 2], factor * scales[row + 2]
            three = (place, place + stride, place + 2 * stride)
            _shrink_page(arena, start, following, inputs, x, (a, b, c), (scale_a, scale_b, scale_c), three)
        elif left == 2:
            _shrink_page(arena, start, following, inputs, x, (a, b), (scale_a, scale_b), (place, place + stride))
        else:
            _shrink_page(arena, start, following, inputs, x, (a,), (scale_a,), (place,))
        row += left
        place += left * stride
