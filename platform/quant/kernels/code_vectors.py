# mypy: allow-untyped-decorators
"""y = x W^T + bias with W as codes, in the fp32 vectors of any CPU: the first tile of rows expands a block's codes to
16 bits beside the core while it multiplies, the other tiles find them there.

Shapes, groups and what a row's result depends on: `code_linear.py`.
"""

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

from .instructions.claim import claim, panels_at_once
from .instructions.dot_shapes import STEP
from .instructions.tile import PANEL, ROWS, VECTORS, Tile
from .instructions.vectors import INT, LANES, each_case, put
from .layouts.expand import (
    FLOAT4,
    FLOAT8,
    FLOAT8_AS_HALVES,
    INT4,
    INT8,
    OFFSETS,
    PAIRS,
    RUN_BYTES,
    SCALE_ROOM,
    Expansion,
    add_scaled,
    scales_of,
)
from .layouts.split import total_groups
from .vector_linear import multiply_rows, pack_inputs, packed_size, tile_height, tile_rows

BLOCK: Final = 32 if LANES == 8 else 8
"""Steps of inputs that are expanded at a time: they fit the first-level cache beside a tile's activations. With 8 lanes
sums stay in the registers for longer instead, as in `vector_linear.py` (measured: a seventh)."""
STRIPE: Final = 96
"""Rows that share an expansion: a block of their activations fits the second-level cache."""
CHUNK: Final = 4
"""Panels a worker takes at a time when there are many rows: they share a block of activations."""
EXPANDED: Final = BLOCK * STEP * PANEL * 2
"""Bytes of an expanded block."""
AHEAD: Final = 4096
"""Bytes of codes on their way to the first-level cache."""
SUMS: Final = STRIPE * PANEL * 4
"""Bytes of the sums of a stripe's rows in one panel."""
NO_BIAS: Final = np.zeros(PANEL, np.float32)


def vectors_scratch_size(m: int, k: int) -> int:
    """Floats of scratch that code_linear_in_vectors needs."""
    return packed_size(m, k + STEP) + m * -(-k // STEP)


@intrinsic(prefer_literal=True)
def _expand_and_multiply(
    typing: Any, rows: Any, kind: Any, codes: Any, expanded: Any, inputs: Any, x: Any, y: Any, start: Any
) -> Any:  # fmt: skip
    """y [rows, PANEL] = (start [PANEL], or y where that is 0) + x [inputs / 2, 2, rows] times a panel's codes of so
    many inputs, which are left expanded; addresses all but `rows` (literal), the kind, and the inputs: whole runs."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, kind, codes, expanded, inputs, x, y, start = arguments
        height, add, mul = rows.literal_value, builder.add, builder.mul
        for one in each_case(builder, kind, (INT4, INT8, FLOAT8, FLOAT4)):
            run_inputs, expansion = 2 * PAIRS[one], Expansion(builder, one)
            dtype = types.int16 if one == FLOAT8 and FLOAT8_AS_HALVES else types.uint16
            tile = Tile(builder, height, INT(height), INT(PANEL), y, INT(PANEL))
            runs = builder.sdiv(inputs, INT(run_inputs))

            def place(run: Any, size: int = run_inputs * PANEL * 2) -> Any:
                return add(expanded, mul(run, INT(size)))

            def expand(run: Any, expansion: Expansion = expansion, place: Any = place) -> None:
                here = add(codes, mul(run, INT(RUN_BYTES)))
                for line in range(0, RUN_BYTES, 64):
                    expansion.prefetch(add(here, INT(AHEAD + line)), near=True)
                for vector in range(VECTORS):
                    expansion.write(add(here, INT(vector * 4 * LANES)), place(run), vector)

            def multiply(
                run: Any, sums: list[Any], one: int = one, tile: Tile = tile, runs: Any = runs, expand: Any = expand,
                place: Any = place, dtype: Any = dtype,
            ) -> list[Any]:  # fmt: skip
                following = add(run, INT(1))
                # Those of the next run, so that no product waits for them.
                expand(builder.select(builder.icmp_signed("<", following, runs), following, run))
                for pair in range(PAIRS[one]):
                    number = add(mul(run, INT(PAIRS[one])), INT(pair))
                    weights = add(place(run), INT(pair * 2 * PANEL * 2))
                    sums = tile.multiply(sums, weights, add(x, mul(number, INT(2 * height * 4))), dtype)
                return sums

            expand(ir.Constant(INT, 0))
            tile.store(tile.loop(runs, tile.initial(start), multiply))
        return context.get_dummy_value()

    return types.void(rows, *[types.int64] * 7), generate


@njit
def _first_rows(rows: int, kind: int, codes: int, expanded: int, inputs: int, x: int, y: int, start: int) -> None:
    if ROWS > 8:
        if rows == 12:
            _expand_and_multiply(12, kind, codes, expanded, inputs, x, y, start)
        elif rows == 8:
            _expand_and_multiply(8, kind, codes, expanded, inputs, x, y, start)
    if rows == 6:
        _expand_and_multiply(6, kind, codes, expanded, inputs, x, y, start)
    elif rows == 4:
        _expand_and_multiply(4, kind, codes, expanded, inputs, x, y, start)
    elif rows == 2:
        _expand_and_multiply(2, kind, codes, expanded, inputs, x, y, start)
    elif rows == 1:
        _expand_and_multiply(1, kind, codes, expanded, inputs, x, y, start)


@njit
def _multiply_block(
    kind: int, codes: int, room: np.ndarray, sums_of: int, inputs: int, packed: int, pairs: int, first_pair: int,
    first: int, last: int, height: int, begins: bool, ends: bool, scales: int, zeros: int, totals: int, bias: int,
    y: int, n: int, columns: int,
) -> None:  # fmt: skip
    """A panel's codes of so many inputs, maybe the first or the last of their group, for the rows first to last."""
    expanded, offset = room.ctypes.data, np.float32(OFFSETS[kind])
    start = NO_BIAS.ctypes.data if begins else 0
    for row in range(first, last, height):
        rows = tile_rows(min(last - row, height))
        x, sums = packed + (row * pairs + first_pair * rows) * 8, sums_of + (row - first) * PANEL * 4
        if row == first:
            _first_rows(rows, kind, codes, expanded, inputs, x, sums, start)
        elif FLOAT8_AS_HALVES and kind == FLOAT8:
            halves = room.view(np.int16)
            multiply_rows(rows, halves, 0, inputs // 2, x, sums, PANEL, rows, PANEL, start, expanded, 0)
        else:
            multiply_rows(rows, room, 0, inputs // 2, x, sums, PANEL, rows, PANEL, start, expanded, 0)
        if ends:
            used, place = min(rows, last - row), y + row * n * 4
            add_scaled(sums, used, scales, zeros, offset, totals + row * 4, bias, place, n * 4, columns)


@njit(parallel=True, cache=True)
def code_linear_in_vectors(
    kind: int, codes: int, scales: int, zeros: int, bias: int, x: int, factors: int, scratch: int, y: int, m: int,
    n: int, k: int, group: int, workers: int,
) -> None:  # fmt: skip
    """All are addresses but the kind, the sizes and the group, in steps; scratch has
    vectors_scratch_size(m, k) floats."""
    steps, total = (k + STEP - 1) // STEP, (n + PANEL - 1) // PANEL
    groups, step_bytes = (steps + group - 1) // group, STEP // 2 // PAIRS[kind] * RUN_BYTES
    packed, pairs, height = scratch, steps * STEP // 2, tile_height(m)
    totals = packed + (m + ROWS) * pairs * 8
    pack_inputs(x, factors, packed, m, k, pairs)
    if kind in (FLOAT8, FLOAT4):  # have no zero points to be multiplied by them
        for index in range(m * groups):
            put(totals + index * 4, np.float32(0))
    else:
        total_groups(x, factors, totals, m, k, group * STEP)
    chunk = panels_at_once(total, workers, CHUNK if m > 2 * ROWS else total)
    together = CHUNK if m > 2 * ROWS else 1
    counter = np.zeros(1, np.int64)
    for _ in prange(workers):
        room = np.empty((EXPANDED + CHUNK * SUMS + SCALE_ROOM) // 2, np.uint16)
        sums = room.ctypes.data + EXPANDED
        begin = claim(counter) * chunk
        while begin < total:
            end = min(begin + chunk, total)
            for front in range(begin, end, together):
                for first in range(0, m, STRIPE):
                    step = 0
                    while step < steps:
                        number = step // group
                        last = min(number * group + group, steps)
                        count = min(BLOCK, last - step)
                        for panel in range(front, min(front + together, end)):
                            at = panel * groups + number
                            own_scales, own_zeros = scales_of(kind, scales, zeros, at, 1, sums + CHUNK * SUMS)
                            _multiply_block(
                                kind, codes + (panel * steps + step) * step_bytes, room, sums + (panel - front) * SUMS,
                                count * STEP, packed, pairs, step * STEP // 2, first, min(first + STRIPE, m), height,
                                step % group == 0, step + count == last, own_scales, own_zeros,
                                totals + number * m * 4, bias + panel * PANEL * 4 if number == 0 else 0,
                                y + panel * PANEL * 4, n, n - panel * PANEL,
                            )  # fmt: skip
                        step += count
            begin = claim(counter) * chunk
