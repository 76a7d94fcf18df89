# mypy: allow-untyped-decorators
"""y = x W^T + bias with W in bfloat16, by dot products (`dots.py`): x is rounded to bfloat16 too, products are added up
in fp32.

Shapes and panels as in panel_linear, panels padded to whole steps of inputs. Each output adds up its products in the
order of K, started from the bias: a row's result does not depend on M, bit for bit.
"""

from typing import Final

import numpy as np
from numba import njit, prange

from .instructions.claim import claim, panels_at_once
from .instructions.dots import BYTES, ROWS, STEP, done, multiply_bfloat16, next_rows, ready
from .instructions.tile import PANEL
from .instructions.vectors import put
from .layouts.split import split_rows

BLOCK: Final = 16
"""Steps of inputs in one block: its weights fit the first-level cache."""
STRIPE: Final = 256
"""Rows of one stripe: a block of its activations fits the second-level cache."""
CHUNK: Final = 4
"""Panels a worker takes at a time when there is more than a stripe's work in each."""


@njit
def _multiply_rows(
    panels: int, begin: int, end: int, panel_bytes: int, first_step: int, steps: int, all_steps: int, bias: int,
    split: int, y: int, stride: int, first: int, last: int, usual: int, following: int,
) -> None:  # fmt: skip
    """The panels begin to end of y for the rows first to last, over one block of inputs."""
    block_bytes = all_steps * BYTES
    for panel in range(begin, end):
        weights = panels + panel * panel_bytes + first_step * 2 * BYTES
        after = weights + panel_bytes if panel + 1 < end else following
        row = first
        while row < last:
            rows = next_rows(last - row)
            x, here = split + row // ROWS * block_bytes + first_step * BYTES, y + row * stride + panel * PANEL * 4
            start, pitch = (bias + panel * PANEL * 4, 0) if first_step == 0 else (here, stride)
            multiply_bfloat16(rows, usual, start, pitch, x, block_bytes, weights, steps, here, stride, after)
            row += rows


@njit
def _multiply_panels(
    panels: int, begin: int, end: int, following: int, bias: int, split: int, y: int, m: int, n: int, steps: int
) -> None:
    """y[:, begin * PANEL : end * PANEL]; a last panel that y has too few columns for goes through a room of its own."""
    panel_bytes = steps * 2 * BYTES
    whole = min(end, n // PANEL)
    for first in range(0, m, STRIPE):
        last = min(first + STRIPE, m)
        block = steps if m <= ROWS else BLOCK
        for step in range(0, steps, block):
            count = min(block, steps - step)
            if whole > begin:
                _multiply_rows(
                    panels, begin, whole, panel_bytes, step, count, steps, bias, split, y, n * 4, first, last,
                    min(m, ROWS), panels + following * panel_bytes,
                )  # fmt: skip
    if whole < end:
        room = np.empty((m, PANEL), np.float32)
        _multiply_rows(
            panels + whole * panel_bytes, 0, 1, panel_bytes, 0, steps, steps, bias + whole * PANEL * 4, split,
            room.ctypes.data, PANEL * 4, 0, m, min(m, ROWS), panels + following * panel_bytes,
        )  # fmt: skip
        _copy(room, y + whole * PANEL * 4, n, n - whole * PANEL)


@njit
def _copy(room: np.ndarray, y: int, n: int, columns: int) -> None:
    for row in range(len(room)):
        for column in range(columns):
            put(y + (row * n + column) * 4, room[row, column])


@njit(parallel=True)
def dot_linear(
    panels: int, bias: int, x: int, factors: int, split: int, y: int, m: int, n: int, k: int, workers: int
) -> None:
    """All but the sizes are addresses, that of factors 0 for none; split has room for split_size(m, k) floats. Workers
    take panels as they get on."""
    steps, tiles = (k + STEP - 1) // STEP, (m + ROWS - 1) // ROWS
    split_rows(x, factors, split, 0, m, k, BLOCK, 1)
    total = (n + PANEL - 1) // PANEL
    chunk = panels_at_once(total, workers, CHUNK if tiles > 2 else total)
    counter = np.zeros(1, np.int64)
    for _ in prange(workers):
        ready(min(m, ROWS))
        begin = claim(counter) * chunk
        while begin < total:
            following = claim(counter) * chunk
            _multiply_panels(
                panels, begin, min(begin + chunk, total), min(following, total - 1), bias, split, y, m, n, steps
            )
            begin = following
        done()
