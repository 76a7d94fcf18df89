# mypy: allow-untyped-decorators
"""y = x W^T + bias with W as codes: blocks are expanded to bfloat16 beside the core, multiplied like any other weights,
and the sums of a group are rid of the zero points and scaled. For matrix registers; with dot products in vector
registers codes are expanded there (`code_dots.py`), and where there are none fp32 vectors multiply (`code_vectors.py`).

    y[t, o] = bias[o] + sum over groups g of
              scales[o, g] * (sum over i in g of x[t, i] codes[o, i] - zeros[o, g] * sum over i in g of x[t, i])

Shapes: x [M, K] fp32, codes, scales and zeros by panels (`codes.py`), bias [N up to whole panels] fp32, y [M, N] fp32.
x is multiplied by factors [K] fp32 first, unless their address is 0.
A group is a multiple of STEP inputs, or all. A row's result does not depend on M, bit for bit.
"""

from typing import Any, Final

import numpy as np
from numba import njit, prange

from .code_dots import code_linear_in_vector_dots
from .instructions.amx_dots import done, multiply_bfloat16, multiply_split_bfloat16, ready
from .instructions.claim import claim, panels_at_once
from .instructions.dots import BYTES, HAS_MATRIX, ROWS, STEP, next_rows
from .instructions.tile import PANEL
from .layouts.expand import OFFSETS, PAIRS, RUN_BYTES, SCALE_ROOM, add_scaled, expand_panel, scales_of
from .layouts.split import split_rows, split_size

BLOCK: Final = 8
"""Steps of inputs that are expanded at a time: they fit the first-level cache beside their codes."""
STRIPE: Final = 512
"""Rows that share an expansion: a block of their activations fits the second-level cache."""
CHUNK: Final = 4
"""Panels a worker takes at a time when there are many rows: they share a block of activations."""
EXPANDED: Final = BLOCK * 2 * BYTES
"""Bytes of an expanded block."""
SUMS: Final = STRIPE * PANEL * 4
"""Bytes of the sums of a stripe's rows in one panel."""
ROOM: Final = (EXPANDED + CHUNK * SUMS + SCALE_ROOM) // 4
"""Floats that a worker needs: an expanded block, the sums of a stripe's rows in a chunk of panels, a group's scales."""
ZEROS: Final = np.zeros(PANEL, np.float32)


def scratch_size(m: int, k: int, workers: int) -> int:
    """Floats of scratch that code_linear_in_matrix needs."""
    steps = -(-k // STEP)
    return workers * ROOM + m * steps + ROWS + int(split_size(m, k))


@njit
def _block(step: int, steps: int, group: int) -> int:
    """Steps from `step` on that are expanded at once: of one group."""
    return min(BLOCK, steps - step, group - step % group)


@njit
def _multiply_dots(
    room: int, sums_of: int, count: int, split: int, block_bytes: int, addends: int, first: int, last: int, usual: int,
    begins: bool, ends: bool, scales: int, zeros: int, offset: float, totals: int, bias: int, y: int, n: int,
    columns: int,
) -> None:  # fmt: skip
    """One expanded block for the rows first to last, by dot products; it may be the first or the last of its group."""
    row = first
    while row < last:
        x, rows = split + row // ROWS * block_bytes, next_rows(last - row)
        sums = sums_of + (row - first) * PANEL * 4
        start, pitch = (ZEROS.ctypes.data, 0) if begins else (sums, PANEL * 4)
        if addends == 2:
            multiply_split_bfloat16(rows, usual, start, pitch, x, block_bytes, room, count, sums, PANEL * 4, 0)
        else:
            multiply_bfloat16(rows, usual, start, pitch, x, block_bytes, room, count, sums, PANEL * 4, 0)
        if ends:
            add_scaled(sums, rows, scales, zeros, offset, totals + row * 4, bias, y + row * n * 4, n * 4, columns)
        row += rows


@njit(parallel=True, cache=True)
def code_linear_in_matrix(
    kind: int, codes: int, scales: int, zeros: int, bias: int, x: int, factors: int, scratch: int, y: int, m: int,
    n: int, k: int, group: int, workers: int, addends: int,
) -> None:  # fmt: skip
    """All are addresses but the kind, the sizes and the group, in steps; scratch has scratch_size(m, k, workers) floats
    from a cache line on. `addends`: numbers in bfloat16 that stand for an activation, 1 or 2."""
    steps, total = (k + STEP - 1) // STEP, (n + PANEL - 1) // PANEL
    groups, step_bytes = (steps + group - 1) // group, STEP // 2 // PAIRS[kind] * RUN_BYTES
    offset, block_bytes = np.float32(OFFSETS[kind]), steps * addends * BYTES
    split = scratch + workers * ROOM * 4
    totals = split + split_size(m, k) * 4
    split_rows(x, factors, split, totals, m, k, group, addends)
    chunk = panels_at_once(total, workers, CHUNK if m > 2 * ROWS else total)
    together = CHUNK if m > 2 * ROWS else 1
    counter = np.zeros(1, np.int64)
    for worker in prange(workers):
        room = scratch + worker * ROOM * 4
        ready(min(m, ROWS))
        begin = claim(counter) * chunk
        while begin < total:
            for front in range(begin, min(begin + chunk, total), together):
                for first in range(0, m, STRIPE):
                    step = 0
                    while step < steps:
                        count, number = _block(step, steps, group), step // group
                        last = min(number * group + group, steps)
                        for panel in range(front, min(front + together, begin + chunk, total)):
                            at, source = panel * groups + number, codes + (panel * steps + step) * step_bytes
                            scale_room = room + EXPANDED + CHUNK * SUMS
                            own_scales, own_zeros = scales_of(kind, scales, zeros, at, 1, scale_room)
                            expand_panel(kind, source, room, count * STEP // 2, True)
                            _multiply_dots(
                                room, room + EXPANDED + (panel - front) * SUMS, count, split + step * addends * BYTES,
                                block_bytes, addends, first, min(first + STRIPE, m), min(m, ROWS), step % group == 0,
                                step + count == last, own_scales, own_zeros, offset, totals + number * m * 4,
                                bias + panel * PANEL * 4 if number == 0 else 0, y + panel * PANEL * 4, n,
                                n - panel * PANEL,
                            )  # fmt: skip
                        step += count
            begin = claim(counter) * chunk
        done()


# By dot products, in the registers that this processor has for them.
code_linear_in_dots = code_linear_in_matrix if HAS_MATRIX else code_linear_in_vector_dots


def in_dots(addends: int) -> Any:
    """code_linear_in_dots with the arguments of the other kernels."""

    @njit(cache=True)
    def multiply(
        kind: int, codes: int, scales: int, zeros: int, bias: int, x: int, factors: int, scratch: int, y: int, m: int,
        n: int, k: int, group: int, workers: int,
    ) -> None:  # fmt: skip
        code_linear_in_dots(kind, codes, scales, zeros, bias, x, factors, scratch, y, m, n, k, group, workers, addends)

    return multiply
