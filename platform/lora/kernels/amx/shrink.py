# mypy: allow-untyped-decorators
"""h = scale * x A^T, split into bfloat16, for up to BLOCK tokens of one adapter, in matrix registers.

Inputs are taken in runs of RUN, 16 vectors of 16 pairs: product l of a run has pair l of each of its vectors. So the
lanes of vectors that go along A's rows are chains of the same multiply-adds (`avx512_shrink.py`), bit for bit.
"""

from collections.abc import Callable
from typing import Any, Final

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..vector_code import FLOATS, INT, LANES, LINE, PAGE, WORDS, VectorCode, data_of
from .registers import (
    BYTES,
    INPUTS,
    ROW_BYTES,
    ROWS,
    WEIGHTS,
    clear,
    configuration,
    configure,
    each_below,
    load,
    multiply,
    release,
    store,
)

TILES: Final = 4
BLOCK: Final = TILES * ROWS
"""Tokens whose sums the registers hold."""
PAIRS_INPUTS: Final = 2 * LANES
"""Inputs of one vector of pairs."""
RUN: Final = ROWS * PAIRS_INPUTS
AHEAD: Final = 4096
"""Bytes of x, whose rows mostly follow each other, that are on their way to the first-level cache."""
RUN_BYTES: Final = ROWS * BYTES
"""Of one factor of a run, as products take it: [product, row, pair]."""
CONFIGURATION: Final = configuration(ROWS)


def _transpose(code: VectorCode, vectors: list[Any]) -> list[Any]:
    """16 vectors of 16 words, transposed: the four bits of vector and lane numbers change places one by one."""
    for bit in (1, 2, 4, 8):
        low = [lane if not lane & bit else lane - bit + LANES for lane in range(LANES)]
        high = [lane + bit if not lane & bit else lane + LANES for lane in range(LANES)]
        changed = list(vectors)
        for first in range(LANES):
            if not first & bit:
                a, b = vectors[first], vectors[first + bit]
                changed[first], changed[first + bit] = code.shuffle(a, b, low), code.shuffle(a, b, high)
        vectors = changed
    return vectors


def _store_rows(code: VectorCode, vectors: list[Any], target: Any) -> None:
    """Each as a row of another product."""
    for product, vector in enumerate(_transpose(code, vectors)):
        place = code.builder.add(target, INT(product * BYTES))
        code.builder.store(vector, code.builder.inttoptr(place, WORDS.as_pointer()), align=ROW_BYTES)


@intrinsic
def _pack_token(typing: Any, x: Any, first: Any, left: Any, target: Any) -> Any:
    """A run of inputs, rounded: those from x's number `first` on, of which there are `left`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code, (_, first, left, target) = VectorCode(builder), arguments
        start = code.at(data_of(context, builder, x, arguments[0]), first, x.dtype)

        def pack(masks: Callable[[int], Any]) -> None:
            vectors = []
            for vector in range(ROWS):
                address = code.at(start, INT(vector * PAIRS_INPUTS), x.dtype)
                for line in range(0, PAIRS_INPUTS * x.dtype.bitwidth // 8, LINE):
                    code.prefetch_near(builder.add(address, INT(AHEAD + line)))
                vectors.append(builder.bitcast(code.load_rounded(address, x.dtype, masks(vector)), WORDS))
            _store_rows(code, vectors, target)

        with builder.if_else(builder.icmp_signed(">=", left, INT(RUN))) as (whole, part):
            with whole:
                pack(lambda vector: None)
            with part:
                pack(lambda vector: code.pair_masks(builder.sub(left, INT(vector * PAIRS_INPUTS))))
        return context.get_dummy_value()

    return types.void(x, types.int64, types.int64, types.int64), generate


@intrinsic
def _pack_ranks(typing: Any, arena: Any, first: Any, second: Any, inputs: Any, left: Any, target: Any) -> Any:
    """A run of the ranks of two pages, whose A rows go on at `first` and `second` (-1: there is none)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code, (_, first, second, inputs, left, target) = VectorCode(builder), arguments
        data = data_of(context, builder, arena, arguments[0])
        has_second = builder.icmp_signed(">=", second, INT(0))
        starts = first, builder.select(has_second, second, first)
        counts = left, builder.select(has_second, left, INT(0))
        with cgutils.for_range(builder, INT(ROWS), intp=INT) as loop:
            vectors, position = [], builder.mul(loop.index, INT(PAIRS_INPUTS))
            for start, count in zip(starts, counts, strict=True):
                mask = code.mask(builder.sub(count, position), PAIRS_INPUTS)
                for rank in range(PAGE):
                    place = builder.add(start, builder.add(builder.mul(inputs, INT(rank)), position))
                    pairs = code.load_pairs(code.at(data, place, arena.dtype), mask)
                    vectors.append(builder.bitcast(pairs, WORDS))
            _store_rows(code, vectors, builder.add(target, builder.mul(loop.index, INT(ROW_BYTES))))
        return context.get_dummy_value()

    return types.void(arena, *[types.int64] * 5), generate


@intrinsic
def _clear(typing: Any, tiles: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        each_below(builder, arguments[0], TILES, lambda tile: clear(builder, tile))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def _add_run(typing: Any, tiles: Any, x: Any, a: Any) -> Any:
    """sums [tiles, 16 tokens, 16 ranks] += the products of a run; x: [tiles] of RUN_BYTES, a: one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tiles, x, a = arguments
        with cgutils.for_range(builder, INT(ROWS), intp=INT) as loop:
            offset = builder.mul(loop.index, INT(BYTES))
            load(builder, WEIGHTS, builder.add(a, offset), INT(ROW_BYTES))

            def add(tile: int) -> None:
                register = INPUTS[tile % len(INPUTS)]
                place = builder.add(builder.add(x, offset), INT(tile * RUN_BYTES))
                load(builder, register, place, INT(ROW_BYTES))
                multiply(builder, tile, register, WEIGHTS)

            each_below(builder, tiles, TILES, add)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@intrinsic
def _store_sums(typing: Any, tiles: Any, target: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tiles, target = arguments
        each_below(
            builder, tiles, TILES, lambda t: store(builder, t, builder.add(target, INT(t * BYTES)), INT(ROW_BYTES))
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _write_split(typing: Any, sums: Any, factor: Any, ranks: Any, target: Any) -> Any:
    """One token's, scaled, for the first `ranks` of 16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code, (sums, factor, ranks, target) = VectorCode(builder), arguments
        scaled = builder.fmul(code.load(sums, types.float32), code.splat(factor, FLOATS))
        code.store(builder.bitcast(code.split(scaled), FLOATS), target, types.float32, code.mask(ranks))
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64, types.int64), generate


@njit
def scratch_bytes(inputs: int) -> int:
    """Of one worker: BLOCK tokens' inputs, a run of ranks, sums."""
    return ((inputs + RUN - 1) // RUN * TILES + 1) * RUN_BYTES + TILES * BYTES + ROW_BYTES


@njit
def shrink_block(
    arena: Any, offset: Any, slots: Any, kinds: Any, firsts: Any, layer: int, scaling: Any, scales: Any, ranks: Any,
    x: Any, tokens: Any, h: Any, item: Any, scratch: int,
) -> None:  # fmt: skip
    """h[row:end] of one item (segment, first page, last page, row, end): pages of all members, counted through.

    end - row is a multiple of 16, at most BLOCK; scratch: the address of scratch_bytes(inputs). The others as in
    add_lora.
    """
    segment, begin, last, row, end = item
    inputs, tiles, room = x.shape[1], (end - row) // ROWS, offset.shape[2] * PAGE
    packed = (scratch + ROW_BYTES - 1) // ROW_BYTES * ROW_BYTES
    runs = (inputs + RUN - 1) // RUN
    a = packed + runs * TILES * RUN_BYTES
    sums = a + RUN_BYTES
    for token in range(row, end):
        tile, place = (token - row) // ROWS, (token - row) % ROWS * ROW_BYTES
        for run in range(runs):
            target = packed + (run * TILES + tile) * RUN_BYTES + place
            _pack_token(x, tokens[token] * inputs + run * RUN, inputs - run * RUN, target)
    configure(CONFIGURATION.ctypes.data)
    slot, passed = slots[segment], 0
    for member in range(len(kinds)):
        pages = (ranks[segment, member] + PAGE - 1) // PAGE
        outputs = firsts[member + 1] - firsts[member]
        start = layer * PAGE * (inputs + outputs)
        factor = scaling[slot, kinds[member], layer]
        first_page, last_page = max(begin - passed, 0), min(last - passed, pages)
        for page in range(first_page, last_page, 2):
            has_second = page + 1 < last_page
            first = offset[slot, kinds[member], page] + start
            second = offset[slot, kinds[member], page + 1] + start if has_second else -1
            _clear(tiles)
            for run in range(runs):
                at, left = run * RUN, inputs - run * RUN
                _pack_ranks(arena, first + at, second + at if has_second else -1, inputs, left, a)
                _add_run(tiles, packed + run * TILES * RUN_BYTES, a)
            _store_sums(tiles, sums)
            column = member * room + page * PAGE
            for token in range(row, end):
                target = h.ctypes.data + (token * h.shape[1] + column) * 4
                count = 2 * PAGE if has_second else PAGE
                _write_split(sums + (token - row) * ROW_BYTES, factor * scales[token], count, target)
        passed += pages
    release()
