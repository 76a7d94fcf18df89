"""y = x W_e^T + bias_e for rows grouped by expert (triton): each program reads where its expert's weight is.

Shapes: T tokens with K of E experts each make P = T K rows, those of an expert side by side. Experts that no token goes
to are not read.
"""

from typing import Final

import triton
import triton.language as tl

from .chain import let_next_begin, wait_for_previous
from .decode import multiply_tiles
from .multiply import order_outputs, store, sum_runs

ALIGNMENT: Final = tl.constexpr(16)
"""Bytes that addresses of weights are a multiple of."""


@triton.jit
def find_piece(
    pieces: tl.tensor, pairs: tl.tensor, PER_TOKEN: tl.constexpr, ROWS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The expert of this program's piece, or -1; its rows [ROWS], where they are read from, and which there are.
    PER_TOKEN: K, where x has a row for each token; 0: where it has one for each row."""
    piece = pieces + 3 * tl.program_id(1)
    expert = tl.load(piece)
    lanes = tl.arange(0, ROWS)
    live = lanes < tl.load(piece + 2)
    row = tl.load(piece + 1) + lanes
    source = row
    if PER_TOKEN:
        source = tl.load(pairs + row, mask=live, other=0) // PER_TOKEN
    return expert, row.to(tl.int64), source.to(tl.int64), live


@triton.jit
def find_array(
    table: tl.tensor, expert: tl.tensor, COLUMN: tl.constexpr, WIDTH: tl.constexpr, DTYPE: tl.constexpr
) -> tl.tensor:
    """The array whose address the table [E, WIDTH] has."""
    return tl.load(table + expert * WIDTH + COLUMN).to(tl.pointer_type(DTYPE))


@triton.jit
def multiply_floats(
    y: tl.tensor, x: tl.tensor, table: tl.tensor, pieces: tl.tensor, pairs: tl.tensor,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, PER_TOKEN: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (blocks of outputs, pieces). table [E, 2]: weight [outputs, inputs] and bias, in x's dtype."""
    let_next_begin(CHAINED)
    wait_for_previous(CHAINED)
    expert, row, source, live = find_piece(pieces, pairs, PER_TOKEN, ROWS)
    if expert >= 0:
        dtype: tl.constexpr = x.dtype.element_ty
        weight = tl.multiple_of(find_array(table, expert, 0, 2, dtype), ALIGNMENT)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = (column < OUTPUTS) | (OUTPUTS % COLUMNS == 0)
        total = tl.zeros((COLUMNS, ROWS), tl.float32)
        for first in tl.range(0, INPUTS, STEP, num_stages=STAGES):
            places = first + tl.arange(0, STEP)
            within = (places < INPUTS) | (INPUTS % STEP == 0)
            weights = tl.load(
                weight + column[:, None] * INPUTS + places[None, :], mask=inside[:, None] & within[None, :], other=0.0
            )
            values = tl.load(
                x + source[:, None] * INPUTS + places[None, :], mask=live[:, None] & within[None, :], other=0.0
            )
            total = multiply_tiles(weights, values.T, total)
        if BIAS:
            bias = find_array(table, expert, 1, 2, dtype)
            total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[:, None]
        results = y + row[:, None] * OUTPUTS + column[None, :]
        tl.store(results, total.T.to(dtype), mask=live[:, None] & inside[None, :])


@triton.jit
def multiply_codes(
    y: tl.tensor, x: tl.tensor, table: tl.tensor, pieces: tl.tensor, pairs: tl.tensor,
    FORMAT: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, STRIDE: tl.constexpr, RUN: tl.constexpr,
    RUNS: tl.constexpr, GROUP_RUNS: tl.constexpr, ZERO_RUNS: tl.constexpr, ORDERED: tl.constexpr, PANEL: tl.constexpr,
    WIDTH: tl.constexpr, SCALES: tl.constexpr, PER_TOKEN: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr, WARPS: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (panels / WIDTH, pieces). table [E, 4]: codes, scales of the dtype SCALES, zeros, and the bias in x's dtype;
    all else as of `multiply`, which shares out nothing here. y [P, STRIDE]."""
    let_next_begin(CHAINED)
    wait_for_previous(CHAINED)
    expert, row, source, live = find_piece(pieces, pairs, PER_TOKEN, ROWS)
    if expert >= 0:
        panel = tl.program_id(0) * WIDTH
        PANELS: tl.constexpr = (OUTPUTS + PANEL - 1) // PANEL
        codes = tl.multiple_of(find_array(table, expert, 0, 4, tl.uint8), ALIGNMENT)
        scales = tl.multiple_of(find_array(table, expert, 1, 4, SCALES), ALIGNMENT)
        zeros = tl.multiple_of(find_array(table, expert, 2, 4, tl.uint8), ALIGNMENT)
        total, other_total = sum_runs(
            x + source * INPUTS, live, codes, scales, zeros, panel, 0, RUNS,
            FORMAT, INPUTS, RUN, RUNS, GROUP_RUNS, ZERO_RUNS, ORDERED, PANEL, PANELS, WIDTH, STAGES, WARPS,
        )  # fmt: skip
        bias = find_array(table, expert, 3, 4, x.dtype.element_ty)
        outputs = panel * PANEL + order_outputs(PANEL, WARPS, ORDERED)
        store(y, total, bias, row, live, outputs, OUTPUTS, STRIDE, BIAS)
        if WIDTH == 2:
            store(y, other_total, bias, row, live, outputs + PANEL, OUTPUTS, STRIDE, BIAS)
