# mypy: allow-untyped-decorators
"""y = x W^T + bias with W kept in 16 or 32 bits and all arithmetic in fp32, in the vector registers of any CPU.

Shapes: x [M, K] fp32, W [N, K] as panels of uint16, int16 or float32 (`panels.py`), bias [N] fp32, y [M, N] fp32.

The micro-kernel keeps a tile of y, rows x PANEL, in registers and runs over a block of K. Each output is one chain of
fused multiply-adds in the order of K, started from the bias: a row's result does not depend on M, bit for bit.
"""

from typing import Any, Final

import numpy as np
from numba import njit, prange, types
from numba.extending import intrinsic

from .instructions.claim import claim, panels_at_once
from .instructions.tile import PANEL, ROWS, Tile
from .instructions.vectors import INT, LANES
from .layouts.transpose import pack_rows

FEW_ROWS: Final = 8
"""Tiles of at most so many rows wait for memory, not for arithmetic: every line of the next weights is then brought
all the way to the first level (measured: a fifth faster at one row, and with twelve rows a tenth slower). Where there
is no other tile, weights are read from one end to the other: the inputs of so few rows stay in a cache."""
AHEAD: Final = 2048
"""Bytes of weights that are on their way where they are read from one end to the other."""
BLOCK: Final = 512 if LANES == 8 else 128
"""Pairs of inputs in one block: its weights and one tile's activations fit the first-level cache. With 8 lanes sums are
left where they are for longer instead: the second-level cache keeps up with so short vectors (measured: a tenth)."""
STRIPE: Final = 12
"""Tiles of one stripe of rows: a block of its activations fits the second-level cache (with 8 lanes 288 KB)."""
CHUNK: Final = 4
"""Panels a worker takes at a time when there is more than a stripe's work in each."""


def packed_size(m: int, k: int) -> int:
    """Floats that x takes as the tiles read it."""
    return (m + ROWS) * (k + 1)


@intrinsic(prefer_literal=True)
def _multiply_tile(
    typing: Any, rows: Any, panels: Any, start: Any, pairs: Any, x: Any, y: Any, stride: Any, used_rows: Any,
    used_columns: Any, bias: Any, ahead: Any, ahead_step: Any,
) -> Any:  # fmt: skip
    """y tile = (bias, or y where bias is 0) + x tile [pairs, 2, rows] times `pairs` pairs of panels from `start` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, array, start, pairs, x, y, stride, used_rows, used_columns, bias, ahead, ahead_step = arguments
        tile = Tile(builder, rows.literal_value, used_rows, used_columns, y, stride)
        pair_bytes = 2 * PANEL * panels.dtype.bitwidth // 8
        few = rows.literal_value <= FEW_ROWS
        data = builder.ptrtoint(context.make_array(panels)(context, builder, array).data, INT)
        weights = builder.add(data, builder.mul(start, INT(pair_bytes)))

        def body(pair: Any, sums: list[Any]) -> list[Any]:
            line = builder.add(ahead, builder.mul(pair, ahead_step))
            tile.prefetch(line, near=few)
            if few:
                tile.prefetch(builder.add(line, INT(64)), near=True)
            inputs = builder.add(x, builder.mul(pair, INT(2 * rows.literal_value * 4)))
            return tile.multiply(sums, builder.add(weights, builder.mul(pair, INT(pair_bytes))), inputs, panels.dtype)

        tile.store(tile.loop(pairs, tile.initial(bias), body))
        return context.get_dummy_value()

    return types.void(rows, panels, *[types.int64] * 10), generate


@njit(inline="always")
def tile_height(m: int) -> int:
    """Rows of all tiles but the last. Two tiles of four take less than one of six and one of two, in which every
    product waits for the one before."""
    return 4 if ROWS == 6 and 6 < m <= 8 else ROWS


@njit(inline="always")
def tile_rows(rows: int) -> int:
    """The smallest tile that holds so many rows, of those that are left from a tile on."""
    if rows > 8:
        return ROWS
    if rows > 4:
        return min(8 if rows > 6 else 6, ROWS)
    return 4 if rows > 2 else rows


@njit
def multiply_rows(
    rows: int, panels: Any, start: int, pairs: int, x: int, y: int, stride: int, used_rows: int, used_columns: int,
    bias: int, ahead: int, step: int,
) -> None:  # fmt: skip
    if ROWS > 8:
        if rows == 12:
            _multiply_tile(12, panels, start, pairs, x, y, stride, used_rows, used_columns, bias, ahead, step)
        elif rows == 8:
            _multiply_tile(8, panels, start, pairs, x, y, stride, used_rows, used_columns, bias, ahead, step)
    if rows == 6:
        _multiply_tile(6, panels, start, pairs, x, y, stride, used_rows, used_columns, bias, ahead, step)
    elif rows == 4:
        _multiply_tile(4, panels, start, pairs, x, y, stride, used_rows, used_columns, bias, ahead, step)
    elif rows == 2:
        _multiply_tile(2, panels, start, pairs, x, y, stride, used_rows, used_columns, bias, ahead, step)
    elif rows == 1:
        _multiply_tile(1, panels, start, pairs, x, y, stride, used_rows, used_columns, bias, ahead, step)


@njit
def _multiply_panels(
    panels: Any, begin: int, end: int, following: int, bias: int, packed: int, y: int, m: int, n: int, pairs: int
) -> None:
    """y[:, begin * PANEL : end * PANEL]: stripe by stripe, so that activations stay near while panels pass by.

    Each panel brings the next one near; after the last comes panel `following`. Of few rows it brings its own weights.
    """
    height, data, pair_bytes = tile_height(m), panels.ctypes.data, panels.itemsize * PANEL * 2
    tiles = (m + height - 1) // height
    if m <= min(FEW_ROWS, ROWS):
        rows = tile_rows(m)
        for panel in range(begin, end):
            start, here = panel * pairs, y + panel * PANEL * 4
            multiply_rows(
                rows, panels, start, pairs, packed, here, n, m, n - panel * PANEL, bias + panel * PANEL * 4,
                data + start * pair_bytes + AHEAD, pair_bytes,
            )  # fmt: skip
        return
    for stripe in range(0, tiles, STRIPE):
        for first_pair in range(0, pairs, BLOCK):
            count = min(pairs - first_pair, BLOCK)
            for panel in range(begin, end):
                start = panel * pairs + first_pair
                if panel + 1 < end:
                    next_start = start + pairs
                elif first_pair + BLOCK < pairs:
                    next_start = begin * pairs + first_pair + BLOCK
                else:
                    next_start = following * pairs
                bias_here = bias + panel * PANEL * 4 if first_pair == 0 else 0
                for tile in range(stripe, min(stripe + STRIPE, tiles)):
                    first, rows = tile * height, tile_rows(min(m - tile * height, height))
                    x_here, y_here = (
                        packed + (first * pairs + first_pair * rows) * 8,
                        y + (first * n + panel * PANEL) * 4,
                    )
                    ahead, step = data + next_start * pair_bytes, 128
                    if tiles > 1:
                        ahead, step = ahead + (tile % 2) * count * 64, 64
                    multiply_rows(
                        rows, panels, start, count, x_here, y_here, n, m - first, n - panel * PANEL, bias_here, ahead,
                        step,
                    )  # fmt: skip


@njit(parallel=True)
def pack_inputs(x: int, factors: int, packed: int, m: int, k: int, pairs: int) -> None:
    """x [m, k], times factors [k] unless they are 0, as the tiles read it: of each tile [pairs, 2, rows], zeros past
    the inputs."""
    height, blocks = tile_height(m), (pairs + BLOCK - 1) // BLOCK
    tiles = (m + height - 1) // height
    for item in prange(tiles * blocks):
        tile, first_pair = item // blocks, item % blocks * BLOCK
        first, rows = tile * height, tile_rows(min(m - tile * height, height))
        count = min(pairs - first_pair, BLOCK)
        source, target = x + first * k * 4, packed + first * pairs * 8
        pack_rows(source, factors, target, m - first, rows, k, first_pair * 2, count * 2)


@njit(parallel=True)
def vector_linear(
    panels: Any, bias: int, x: int, factors: int, packed: int, y: int, m: int, n: int, k: int, workers: int
) -> None:
    """bias, x, factors, packed and y are addresses of fp32 arrays, that of factors 0 for none; packed has
    packed_size(m, k) floats.

    `workers` threads take panels as they get on: a slow core delays nobody.
    """
    pairs, tiles = (k + 1) // 2, (m + tile_height(m) - 1) // tile_height(m)
    if m == 1 and k % 2 == 0 and not factors:
        packed = x
    else:
        pack_inputs(x, factors, packed, m, k, pairs)
    total = (n + PANEL - 1) // PANEL
    chunk = panels_at_once(total, workers, CHUNK if tiles > 2 else total)
    counter = np.zeros(1, np.int64)
    for _ in prange(workers):
        begin = claim(counter) * chunk
        while begin < total:
            following = claim(counter) * chunk
            _multiply_panels(
                panels, begin, min(begin + chunk, total), min(following, total - 1), bias, packed, y, m, n,
                pairs,
            )  # fmt: skip
            begin = following
