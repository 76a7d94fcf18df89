"""y = x W^T + bias over packed codes (triton): x [rows, in] bfloat16 or float16, W as in layout.py, sums in fp32.

The products are of exact integers (or float8 values): a group's scale multiplies their sum, not each weight, which
costs less and rounds nothing. With few rows the inputs are split among programs, and `add_splits` adds their parts up
in one fixed order.
"""

import triton
import triton.language as tl

from .chain import let_next_begin, wait_for_previous
from .decode import FLOAT8, FLOAT8_FACTOR, INTEGER4, decode_bytes, decode_halves, multiply_tiles


@triton.jit(do_not_specialize=["rows"])
def multiply(
    y: tl.tensor, x: tl.tensor, codes: tl.tensor, scales: tl.tensor, zeros: tl.tensor, bias: tl.tensor, rows: tl.tensor,
    FORMAT: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, RUN: tl.constexpr, RUNS: tl.constexpr,
    GROUP_RUNS: tl.constexpr, ZERO_RUNS: tl.constexpr, PANEL: tl.constexpr, SPLIT_RUNS: tl.constexpr,
    PASS_RUNS: tl.constexpr, STRIDE: tl.constexpr, BIAS: tl.constexpr, TILE_OUTPUTS: tl.constexpr,
    TILE_ROWS: tl.constexpr, AHEAD: tl.constexpr, STAGES: tl.constexpr, WARPS: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (blocks of outputs, splits, blocks of rows). y: [rows, STRIDE] with one split, else parts of the sums in
    fp32, [splits, rows, OUTPUTS]. GROUP_RUNS and ZERO_RUNS: runs that share scales and zeros, 0 where all do.

    `stored` are outputs as they lie in memory, `outputs` those of the sums.
    """
    block, split, row_block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    let_next_begin(CHAINED)
    BYTES: tl.constexpr = RUN // 2 if FORMAT == INTEGER4 else RUN
    HALF: tl.constexpr = RUN // 2
    SHUFFLED: tl.constexpr = HALF == 64 and TILE_OUTPUTS % (16 * WARPS) == 0
    WHOLE: tl.constexpr = INPUTS % (RUN * PASS_RUNS) == 0
    first, last = split * SPLIT_RUNS, min(split * SPLIT_RUNS + SPLIT_RUNS, RUNS)
    if CHAINED:
        for index in tl.static_range(-(-TILE_OUTPUTS // PANEL)):
            place = block * TILE_OUTPUTS // PANEL + index
            if place * PANEL < OUTPUTS:
                count = min(last - first, STAGES * PASS_RUNS)
                prefetch(codes + (place * RUNS + first) * (PANEL * BYTES), count * (PANEL * BYTES))
    wait_for_previous(CHAINED)
    stored = block * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    outputs = block * TILE_OUTPUTS + order_outputs(TILE_OUTPUTS, WARPS, SHUFFLED)
    here = (stored < OUTPUTS) | (OUTPUTS % TILE_OUTPUTS == 0)
    inside = (outputs < OUTPUTS) | (OUTPUTS % TILE_OUTPUTS == 0)
    row = row_block * TILE_ROWS + tl.arange(0, TILE_ROWS)
    live = row < rows
    lanes = order_inputs(HALF, SHUFFLED)
    values = x + row[:, None] * INPUTS + lanes[None, :]
    panel = stored // PANEL * (RUNS * PANEL) + stored % PANEL
    places = codes + panel[:, None] * BYTES + tl.arange(0, HALF)[None, :]
    zero = load_group(zeros, first, stored, here, OUTPUTS, RUNS, ZERO_RUNS)
    scale = load_group(scales, first, outputs, inside, OUTPUTS, RUNS, GROUP_RUNS)
    next_zero, next_scale = zero, scale
    total = tl.zeros((TILE_OUTPUTS, TILE_ROWS), tl.float32)
    dtype: tl.constexpr = x.dtype.element_ty

    for pass_first in tl.range(first, last, PASS_RUNS, num_stages=STAGES):
        for index in tl.static_range(PASS_RUNS):
            run = pass_first + index
            if ZERO_RUNS:
                next_zero = load_group(zeros, run + AHEAD, stored, here, OUTPUTS, RUNS, ZERO_RUNS)
            if GROUP_RUNS:
                next_scale = load_group(scales, run + AHEAD, outputs, inside, OUTPUTS, RUNS, GROUP_RUNS)
            if not AHEAD:
                zero, scale = next_zero, next_scale
            part = tl.zeros((TILE_OUTPUTS, TILE_ROWS), tl.float32)
            held = here if RUNS % PASS_RUNS == 0 else here & (stored * 0 + run < RUNS)
            code = tl.load(places + run * (PANEL * BYTES), mask=held[:, None], other=0)
            within = live[:, None] & ((run * RUN + lanes < INPUTS) | WHOLE)[None, :]
            low = tl.load(values + run * RUN, mask=within, other=0.0)
            within = live[:, None] & ((run * RUN + HALF + lanes < INPUTS) | WHOLE)[None, :]
            high = tl.load(values + run * RUN + HALF, mask=within, other=0.0)
            if FORMAT == INTEGER4:
                low_weights, high_weights = decode_halves(code, zero[:, None], dtype)
            else:
                high_code = tl.load(places + run * (PANEL * BYTES) + HALF, mask=held[:, None], other=0)
                low_weights = decode_bytes(code, zero[:, None], dtype, FORMAT)
                high_weights = decode_bytes(high_code, zero[:, None], dtype, FORMAT)
            part = multiply_tiles(shuffle(low_weights, WARPS, SHUFFLED), low.T, part)
            part = multiply_tiles(shuffle(high_weights, WARPS, SHUFFLED), high.T, part)
            total += part * scale.to(tl.float32)[:, None] if GROUP_RUNS else part
            if AHEAD:
                zero, scale = next_zero, next_scale

    if GROUP_RUNS == 0:
        total *= scale.to(tl.float32)[:, None]
    if FORMAT == FLOAT8:
        total *= FLOAT8_FACTOR
    if BIAS:
        total += tl.load(bias + outputs, mask=inside, other=0.0).to(tl.float32)[:, None]
    results = y + (split * rows + row)[:, None] * STRIDE + outputs[None, :]
    tl.store(results, total.T.to(y.dtype.element_ty), mask=live[:, None] & inside[None, :])


@triton.jit
def prefetch(start: tl.tensor, size: tl.tensor) -> None:
    """Begin to read `size` bytes into the cache that all multiprocessors share; from sm_90 on."""
    tl.inline_asm_elementwise(
        "{.reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; mov.u32 $0, t;"
        "@p cp.async.bulk.prefetch.L2.global [$1], $2;}",
        "=r,l,r", [start.to(tl.uint64), size], tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def shuffle(weights: tl.tensor, WARPS: tl.constexpr, SHUFFLED: tl.constexpr) -> tl.tensor:
    """A tile of 64 inputs whose threads have 16 neighbours of an output each, as they come from memory -> the same tile
    with outputs and inputs in the order in which the matrix units take them from those threads: no number moves from
    one thread to another, which would cost a way through shared memory."""
    if SHUFFLED:
        OUTPUTS: tl.constexpr = weights.shape[0]
        parts = weights.reshape(OUTPUTS // (16 * WARPS), 2, WARPS, 8, 4, 4, 2, 2)
        weights = parts.permute(0, 2, 1, 3, 5, 6, 4, 7).reshape(OUTPUTS, 64)
    return weights


@triton.jit
def order_outputs(OUTPUTS: tl.constexpr, WARPS: tl.constexpr, SHUFFLED: tl.constexpr) -> tl.tensor:
    """Where `shuffle` has each output from."""
    place = tl.arange(0, OUTPUTS)
    if SHUFFLED:
        block: tl.constexpr = 16 * WARPS
        place = place // block * block + place // 8 % 2 * (8 * WARPS) + place // 16 % WARPS * 8 + place % 8
    return place


@triton.jit
def order_inputs(INPUTS: tl.constexpr, SHUFFLED: tl.constexpr) -> tl.tensor:
    """And each input."""
    place = tl.arange(0, INPUTS)
    if SHUFFLED:
        place = place // 2 % 4 * 16 + place // 16 * 4 + place // 8 % 2 * 2 + place % 2
    return place


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
    let_next_begin(CHAINED)
    wait_for_previous(CHAINED)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + split * rows * OUTPUTS + element, mask=live, other=0.0)
    if BIAS:
        total += tl.load(bias + element % OUTPUTS, mask=live, other=0.0).to(tl.float32)
    places = y + element // OUTPUTS * STRIDE + element % OUTPUTS
    tl.store(places, total.to(y.dtype.element_ty), mask=live)
