# mypy: allow-untyped-decorators
"""h = scale * x A^T, split into bfloat16, for some tokens and the ranks of one page, in AVX-512 registers.

The same bits as `shrink.py`: each lane is two chains of multiply-adds, of first and of second numbers of pairs,
over a run of inputs; then the lanes are added to the sum one after the other. x is rounded to bfloat16, sums are fp32.
"""

from typing import Any, Final

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..vector_code import FLOAT, FLOATS, INT, LANES, LINE, VectorCode, data_of
from .shrink import PAIRS_INPUTS, RUN

SUMS: Final = 8
"""Sums at a time, for each of which the registers hold two chains: a page of one token, half a page of two."""
AHEAD: Final = 512
"""Bytes of each row that are on their way to the first-level cache."""
EIGHT: Final = ir.VectorType(FLOAT, SUMS)
VECTORS: Final = RUN // PAIRS_INPUTS


def _add_lanes(code: VectorCode, total: Any, vectors: list[Any]) -> Any:
    """total [8] + the lanes of each of 8 vectors, lane 0 first."""
    fours = []
    for first in (0, 4):
        a, b, c, d = vectors[first : first + 4]
        for pair in (0, 2):
            order = [lane + part for lane in range(pair, LANES, 4) for part in (0, LANES, 1, LANES + 1)]
            ab, cd = code.shuffle(a, b, order), code.shuffle(c, d, order)
            for half in (0, 2):
                lanes = [lane + half + part for lane in range(0, LANES, 4) for part in (0, 1, LANES, LANES + 1)]
                fours.append(code.shuffle(ab, cd, lanes))
    for lane in range(LANES):
        block, number = lane // 4 * 4, lane % 4
        places = [*range(block, block + 4), *range(LANES + block, LANES + block + 4)]
        total = code.builder.fadd(total, code.shuffle(fours[number], fours[4 + number], places))
    return total


@intrinsic
def _shrink_split(
    typing: Any, arena: Any, start: Any, following: Any, inputs: Any, x: Any, tokens: Any, scales: Any, h: Any,
    part: Any,
) -> Any:  # fmt: skip
    """Split scale * (A [ranks, inputs] at `start`) x[token]; h are addresses of the page's first rank.

    Of one token all ranks of the page, of two those of its half `part`. Towards the end of its rows those at
    `following` are brought near.
    """
    count = SUMS // len(tokens)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = VectorCode(builder)
        inputs, part, data = arguments[3], arguments[8], data_of(context, builder, x, arguments[4])
        above = builder.mul(part, builder.mul(inputs, INT(count)))
        page, ahead = (
            code.at(data_of(context, builder, arena, arguments[0]), builder.add(start, above), arena.dtype)
            for start in arguments[1:3]
        )
        tokens, scales, places = (cgutils.unpack_tuple(builder, value, SUMS // count) for value in arguments[5:8])
        xs = [code.at(data, builder.mul(token, inputs), x.dtype) for token in tokens]
        row_bytes = builder.mul(inputs, INT(arena.dtype.bitwidth // 8))
        ranks, later = (
            [builder.add(start, builder.mul(row_bytes, INT(rank))) for rank in range(count)] for start in (page, ahead)
        )

        def add(position: Any, chains: list[Any], is_last: bool = False) -> list[Any]:
            """The inputs of one vector to the chains [ranks, tokens, 2]."""
            masks = code.pair_masks(builder.sub(inputs, position)) if is_last else None
            sides = [code.sides(code.load_rounded(code.at(row, position, x.dtype), x.dtype, masks)) for row in xs]
            results = []
            for rank, address in enumerate(ranks):
                place = code.at(address, position, arena.dtype)
                weights = code.sides(code.load_pairs(place, masks and masks[1]))
                for token, vectors in enumerate(sides):
                    first = 2 * (rank * len(xs) + token)
                    results += [code.fma(weights[side], vectors[side], chains[first + side]) for side in range(2)]
            return results

        zeros = [ir.Constant(FLOATS, [0.0] * LANES)] * (2 * SUMS)
        full = builder.sdiv(inputs, INT(PAIRS_INPUTS))

        def run(index: Any, totals: list[Any]) -> list[Any]:
            first = builder.mul(index, INT(VECTORS))
            left = builder.sub(full, first)
            vectors = builder.select(builder.icmp_signed("<", left, INT(VECTORS)), left, INT(VECTORS))

            def whole(vector: Any, chains: list[Any]) -> list[Any]:
                position = builder.add(first, vector)
                coming = builder.add(builder.mul(position, INT(LINE)), INT(AHEAD))
                is_here = builder.icmp_signed("<", coming, row_bytes)
                column = builder.select(is_here, coming, builder.sub(coming, row_bytes))
                for address, other in zip(ranks, later, strict=True):
                    code.prefetch_near(builder.add(builder.select(is_here, address, other), column))
                return add(builder.mul(position, INT(PAIRS_INPUTS)), chains)

            chains = code.loop(vectors, zeros, whole)
            rest = builder.mul(builder.add(first, vectors), INT(PAIRS_INPUTS))
            is_part = builder.and_(
                builder.icmp_signed("<", vectors, INT(VECTORS)), builder.icmp_signed("<", rest, inputs)
            )
            chains = code.loop(builder.zext(is_part, INT), chains, lambda _, chains: add(rest, chains, True))
            sums = [builder.fadd(chains[2 * number], chains[2 * number + 1]) for number in range(SUMS)]
            return [_add_lanes(code, totals[0], sums)]

        runs = builder.sdiv(builder.add(inputs, INT(RUN - 1)), INT(RUN))
        (total,) = code.loop(runs, [ir.Constant(EIGHT, [0.0] * SUMS)], run)
        # Totals are by rank, then token; the pairs of a token's ranks are stored together.
        by_token = [rank * len(xs) + token for token in range(len(xs)) for rank in range(count)]
        factors = [code.splat(scale, EIGHT) for scale in scales]
        order = [token * SUMS + token * count + rank for token in range(len(xs)) for rank in range(count)]
        factor = code.shuffle(factors[0], factors[-1], [place % (2 * SUMS) for place in order])
        scaled = builder.fmul(code.shuffle(total, total, by_token), factor)
        split = code.split(code.shuffle(scaled, scaled, [lane % SUMS for lane in range(LANES)]))
        for token, place in enumerate(places):
            stored = code.shuffle(split, split, list(range(token * count, (token + 1) * count)))
            target = builder.add(place, builder.mul(part, INT(4 * count)))
            builder.store(stored, builder.inttoptr(target, stored.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(arena, types.int64, types.int64, types.int64, x, tokens, scales, h, types.int64), generate


@njit
def shrink_tokens(
    arena: Any, start: int, following: int, factor: float, scales: Any, x: Any, tokens: Any, h: Any, row: int,
    end: int, column: int,
) -> None:  # fmt: skip
    """h[row:end, column : column + PAGE] from one page, for the sorted tokens row to end."""
    inputs, stride = x.shape[1], h.shape[1] * 4
    place = h.ctypes.data + row * stride + column * 4
    while row + 1 < end:
        pair, factors = (tokens[row], tokens[row + 1]), (factor * scales[row], factor * scales[row + 1])
        for part in range(2):
            _shrink_split(arena, start, following, inputs, x, pair, factors, (place, place + stride), part)
        row += 2
        place += 2 * stride
    if row < end:
        _shrink_split(arena, start, following, inputs, x, (tokens[row],), (factor * scales[row],), (place,), 0)
