"""y = x W^T + bias over packed codes (triton): x [rows, in] bfloat16 or float16, W as in layout.py, sums in fp32.

The products are of exact integers (or float8 values): a group's scale multiplies their sum, not each weight, which
costs less and rounds nothing. With few rows the inputs are split among programs, and `add_splits` adds their parts up
in one fixed order.
"""

import triton
import triton.language as tl

from .decode import FLOAT8, FLOAT8_FACTOR, INTEGER4, decode, multiply_tiles


@triton.jit(do_not_specialize=["rows"])
def multiply(
    y: tl.tensor, x: tl.tensor, codes: tl.tensor, scales: tl.tensor, zeros: tl.tensor, bias: tl.tensor, rows: tl.tensor,
    FORMAT: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, RUN: tl.constexpr, RUNS: tl.constexpr,
    GROUP_RUNS: tl.constexpr, ZERO_RUNS: tl.constexpr, PANEL: tl.constexpr, SPLIT_RUNS: tl.constexpr,
    STRIDE: tl.constexpr, BIAS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, TILE_ROWS: tl.constexpr,
    AHEAD: tl.constexpr, STAGES: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (blocks of outputs, splits, blocks of rows). y: [rows, STRIDE] with one split, else parts of the sums in
    fp32, [splits, rows, OUTPUTS]. GROUP_RUNS and ZERO_RUNS: runs that share scales and zeros, 0 where all do."""
    block, split, row_block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
    BYTES: tl.constexpr = RUN // 2 if FORMAT == INTEGER4 else RUN
    outputs = block * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    inside = (outputs < OUTPUTS) | (OUTPUTS % TILE_OUTPUTS == 0)
    row = row_block * TILE_ROWS + tl.arange(0, TILE_ROWS)
    live = row < rows
    lanes = tl.arange(0, BYTES)
    values = x + row[:, None] * INPUTS + lanes[None, :]
    panel = outputs // PANEL * (RUNS * PANEL) + outputs % PANEL
    first, last = split * SPLIT_RUNS, min(split * SPLIT_RUNS + SPLIT_RUNS, RUNS)
    zero = load_group(zeros, first, outputs, inside, OUTPUTS, RUNS, ZERO_RUNS)
    scale = load_group(scales, first, outputs, inside, OUTPUTS, RUNS, GROUP_RUNS)
    next_zero, next_scale = zero, scale
    total = tl.zeros((TILE_OUTPUTS, TILE_ROWS), tl.float32)

    for run in tl.range(first, last, num_stages=STAGES):
        code = tl.load(codes + (panel + run * PANEL)[:, None] * BYTES + lanes[None, :], mask=inside[:, None], other=0)
        if GROUP_RUNS:
            next_zero = load_group(zeros, run + AHEAD, outputs, inside, OUTPUTS, RUNS, ZERO_RUNS)
            next_scale = load_group(scales, run + AHEAD, outputs, inside, OUTPUTS, RUNS, GROUP_RUNS)
        if not AHEAD:
            zero, scale = next_zero, next_scale
        part = tl.zeros((TILE_OUTPUTS, TILE_ROWS), tl.float32) if GROUP_RUNS else total
        here = live[:, None] & ((run * RUN + lanes < INPUTS) | (INPUTS % RUN == 0))[None, :]
        low = tl.load(values + run * RUN, mask=here, other=0.0)
        if FORMAT == INTEGER4:
            here = live[:, None] & ((run * RUN + BYTES + lanes < INPUTS) | (INPUTS % RUN == 0))[None, :]
            high = tl.load(values + run * RUN + BYTES, mask=here, other=0.0)
            part = multiply_tiles(decode(code & 15, zero[:, None], x.dtype.element_ty, FORMAT), low.T, part)
            part = multiply_tiles(decode(code >> 4, zero[:, None], x.dtype.element_ty, FORMAT), high.T, part)
        else:
            part = multiply_tiles(decode(code, zero[:, None], x.dtype.element_ty, FORMAT), low.T, part)
        total = total + part * scale.to(tl.float32)[:, None] if GROUP_RUNS else part
        if AHEAD:
            zero, scale = next_zero, next_scale

    if GROUP_RUNS == 0:
        total *= scale.to(tl.float32)[:, None]
    if FORMAT == FLOAT8:
        total *= FLOAT8_FACTOR
    if BIAS:
        total += tl.load(bias + outputs, mask=inside, other=0.0).to(tl.float32)[:, None]
    places = y + (split * rows + row)[:, None] * STRIDE + outputs[None, :]
    tl.store(places, total.T.to(y.dtype.element_ty), mask=live[:, None] & inside[None, :])


@triton.jit
def load_group(
    source: tl.tensor, run: tl.tensor, outputs: tl.tensor, inside: tl.tensor,
    OUTPUTS: tl.constexpr, RUNS: tl.constexpr, GROUP_RUNS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Scales or zeros of the group that `run` is in, one an output; past the last run, that one's."""
    group = min(run, RUNS - 1) // GROUP_RUNS if GROUP_RUNS else 0
    return tl.load(source + group * OUTPUTS + outputs, mask=inside, other=0)


@triton.jit(do_not_specialize=["rows"])
def add_splits(
    y: tl.tensor, parts: tl.tensor, bias: tl.tensor, rows: tl.tensor, OUTPUTS: tl.constexpr, STRIDE: tl.constexpr,
    SPLITS: tl.constexpr, ELEMENTS: tl.constexpr, BIAS: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """y [rows, STRIDE] = sum of parts [SPLITS, rows, OUTPUTS], first to last, + bias. Grid (blocks of elements,)."""
    element = tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
    live = element < rows * OUTPUTS
    total = tl.zeros((ELEMENTS,), tl.float32)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + split * rows * OUTPUTS + element, mask=live, other=0.0)
    if BIAS:
        total += tl.load(bias + element % OUTPUTS, mask=live, other=0.0).to(tl.float32)
    places = y + element // OUTPUTS * STRIDE + element % OUTPUTS
    tl.store(places, total.to(y.dtype.element_ty), mask=live)
