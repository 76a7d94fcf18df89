# mypy: allow-untyped-decorators
"""y = x W^T + bias with W as codes, by dot products of bfloat16 in vector registers (AVX-512 BF16).

    y[t, o] = bias[o] + sum over groups g of
              scales[o, g] * (sum over i in g of x[t, i] codes[o, i] - zeros[o, g] * sum over i in g of x[t, i])

Shapes: x [M, K] fp32, codes, scales and zeros by panels (`codes.py`), bias [N up to whole panels] fp32, y [M, N] fp32.
x is multiplied by factors [K] fp32 first, unless their address is 0.
A group is a multiple of STEP inputs, or all; it adds up its products in the order of K, and groups follow each other: a
row's result does not depend on M, bit for bit.
"""

from typing import Final

import numpy as np
from numba import njit, prange

from .instructions.claim import claim, panels_at_once
from .instructions.code_tile import choose_case, multiply_tile, vectors_of
from .instructions.dot_shapes import ROWS, STEP
from .instructions.tile import PANEL
from .instructions.vectors import LANES
from .layouts.expand import EXPANDED, OFFSETS, PAIRS, RUN_BYTES, SCALE_ROOM, expand_panel, scales_of
from .layouts.split import split_rows, split_size

MANY: Final = 96
"""So many rows or more read a panel that was expanded once, instead of expanding it in each tile."""


@njit(inline="always")
def _room_bytes(k: int) -> int:
    """Of a worker: an expanded panel, and the scales of a group a step."""
    return (k + STEP - 1) // STEP * (STEP * PANEL * 2 + SCALE_ROOM)


def dots_scratch_size(m: int, k: int, workers: int) -> int:
    """Floats of scratch that the kernel needs: rooms, split rows, and sums of their inputs, at most of each step."""
    return int(workers * _room_bytes(k) // 4 + split_size(m, k)) + -(-k // STEP) * m + ROWS


@njit
def _multiply_panel(
    kind: int, addends: int, panel: int, jump: int, codes: int, scales: int, zeros: int, bias: int, y: int,
    n: int, steps: int, group: int, x: int, inputs: int, m: int, offset: float,
) -> None:  # fmt: skip
    """All rows of y in a panel; the codes wanted next begin `jump` bytes after its own."""
    for row in range(0, m, ROWS):
        case = choose_case(kind, addends, min(m - row, ROWS))
        for lane in range(0, PANEL, vectors_of(case) * LANES):
            multiply_tile(
                case, min(m - row, ROWS), panel, lane, codes, scales, zeros, bias, y + row * n * 4, n, steps,
                group, x + row * steps * addends * 64, inputs + row * 4, m, offset, jump,
            )  # fmt: skip


@njit(parallel=True, cache=True)
def code_linear_in_vector_dots(
    kind: int, codes: int, scales: int, zeros: int, bias: int, x: int, factors: int, scratch: int, y: int, m: int,
    n: int, k: int, group: int, workers: int, addends: int,
) -> None:  # fmt: skip
    """All are addresses but the kind, the sizes and the group, in steps; scratch has dots_scratch_size(m, k, workers)
    floats from a cache line on. `addends`: numbers in bfloat16 that stand for an activation, 1 or 2."""
    steps, total, offset = (k + STEP - 1) // STEP, (n + PANEL - 1) // PANEL, np.float32(OFFSETS[kind])
    pairs, groups = steps * STEP // 2, (steps + group - 1) // group
    panel_bytes = pairs // PAIRS[kind] * RUN_BYTES
    split = scratch + workers * _room_bytes(k)
    inputs = split + split_size(m, k) * 4
    split_rows(x, factors, split, inputs, m, k, group, addends)
    chunk = panels_at_once(total, workers, total if m <= ROWS else 1)
    counter = np.zeros(1, np.int64)
    for worker in prange(workers):
        room, begin = scratch + worker * _room_bytes(k), claim(counter) * chunk
        while begin < total:
            following, end = claim(counter) * chunk, min(begin + chunk, total)
            for panel in range(begin, end):
                form, source, after, own_scales, own_zeros = kind, codes, panel + 1, scales, zeros
                if after == end:
                    after = min(following, total - 1)
                if m >= MANY:
                    expand_panel(kind, codes + panel * panel_bytes, room, pairs, False)
                    form, source = EXPANDED, room - panel * steps * STEP * PANEL * 2
                    first, scale_room = panel * groups, room + steps * STEP * PANEL * 2
                    own_scales, own_zeros = scales_of(kind, scales, zeros, first, groups, scale_room)
                    own_scales, own_zeros = own_scales - first * PANEL * 4, own_zeros - first * PANEL
                _multiply_panel(
                    form, addends, panel, (after - panel - 1) * panel_bytes, source, own_scales, own_zeros, bias, y,
                    n, steps, group, split, inputs, m, offset,
                )  # fmt: skip
            begin = following
