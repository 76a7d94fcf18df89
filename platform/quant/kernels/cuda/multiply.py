"""y = x W^T + bias over packed codes (triton): x [rows, in] bfloat16 or float16, W as in layout.py, sums in fp32.

The products are of exact integers (or float8 values): a group's scale multiplies their sum, not each weight, which
costs less and rounds nothing. With few rows the inputs are split among programs, and `add_splits` adds their parts up
in one fixed order.
"""

import triton
import triton.language as tl

from .chain import let_next_begin, wait_for_previous
from .decode import (
    FLOAT4,
    FLOAT8,
    FLOAT8_FACTOR,
    decode_bytes,
    decode_halves,
    has_half_bytes,
    multiply_tiles,
    power_of_two,
)


@triton.jit(do_not_specialize=["rows"])
def multiply(
    y: tl.tensor, x: tl.tensor, codes: tl.tensor, scales: tl.tensor, zeros: tl.tensor, bias: tl.tensor, rows: tl.tensor,
    FORMAT: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, RUN: tl.constexpr, RUNS: tl.constexpr,
    GROUP_RUNS: tl.constexpr, ZERO_RUNS: tl.constexpr, ORDERED: tl.constexpr, PANEL: tl.constexpr,
    SPLIT_RUNS: tl.constexpr, PASS_RUNS: tl.constexpr, STRIDE: tl.constexpr, BIAS: tl.constexpr,
    TILE_ROWS: tl.constexpr, STAGES: tl.constexpr, WARPS: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (panels, splits, blocks of rows). y: [rows, STRIDE] with one split, else parts of the sums in fp32,
    [splits, rows, OUTPUTS]. GROUP_RUNS and ZERO_RUNS: runs that share scales and zeros, 0 where all do. ORDERED: codes
    lie in TILE_ORDER.
    """
    panel, split, row_block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    let_next_begin(CHAINED)
    BYTES: tl.constexpr = RUN // 2 if has_half_bytes(FORMAT) else RUN
    first, last = split * SPLIT_RUNS, min(split * SPLIT_RUNS + SPLIT_RUNS, RUNS)
    if CHAINED:
        count = min(last - first, STAGES * PASS_RUNS)
        prefetch(codes + (panel * RUNS + first) * (PANEL * BYTES), count * (PANEL * BYTES))
        prefetch_groups(scales, panel, first, last, PANEL, RUNS, GROUP_RUNS)
        prefetch_groups(zeros, panel, first, last, PANEL, RUNS, ZERO_RUNS)
    wait_for_previous(CHAINED)
    summed = order_outputs(PANEL, WARPS, ORDERED)
    row = row_block * TILE_ROWS + tl.arange(0, TILE_ROWS)
    live = row < rows
    total = sum_runs(
        x + row * INPUTS, live, codes + panel * (RUNS * PANEL * BYTES), scales, zeros, panel, first, last,
        FORMAT, INPUTS, RUN, RUNS, GROUP_RUNS, ZERO_RUNS, ORDERED, PANEL, PASS_RUNS, STAGES, WARPS,
    )  # fmt: skip
    outputs = panel * PANEL + summed
    inside = (outputs < OUTPUTS) | (OUTPUTS % PANEL == 0)
    if BIAS:
        total += tl.load(bias + outputs, mask=inside, other=0.0).to(tl.float32)[:, None]
    results = y + (split * rows + row)[:, None] * STRIDE + outputs[None, :]
    tl.store(results, total.T.to(y.dtype.element_ty), mask=live[:, None] & inside[None, :])


@triton.jit
def sum_runs(
    values: tl.tensor, live: tl.tensor, codes: tl.tensor, scales: tl.tensor, zeros: tl.tensor, panel: tl.tensor,
    first: tl.tensor, last: tl.tensor,
    FORMAT: tl.constexpr, INPUTS: tl.constexpr, RUN: tl.constexpr, RUNS: tl.constexpr, GROUP_RUNS: tl.constexpr,
    ZERO_RUNS: tl.constexpr, ORDERED: tl.constexpr, PANEL: tl.constexpr, PASS_RUNS: tl.constexpr, STAGES: tl.constexpr,
    WARPS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """[PANEL, rows] of a panel, outputs as `order_outputs` has them: the sum of the runs `first` to `last` - 1.

    values: where each row is [rows]; codes: of the panel. Scales and zero points are read a pass before their use:
    nothing else hides that read. `stored` are outputs as they lie in memory, `summed` those of the sums.
    """
    BYTES: tl.constexpr = RUN // 2 if has_half_bytes(FORMAT) else RUN
    HALF: tl.constexpr = RUN // 2
    WHOLE: tl.constexpr = INPUTS % (RUN * PASS_RUNS) == 0
    TILE_ROWS: tl.constexpr = values.shape[0]
    lanes, stored, summed = tl.arange(0, HALF), tl.arange(0, PANEL), order_outputs(PANEL, WARPS, ORDERED)
    places, halves = codes + stored[:, None] * BYTES + lanes[None, :], values[:, None] + lanes[None, :]
    zero = load_group(zeros, panel, first, stored, PANEL, RUNS, ZERO_RUNS)
    scale = load_group(scales, panel, first, summed, PANEL, RUNS, GROUP_RUNS)
    if PASS_RUNS == 2:
        second_zero = load_next_group(zero, zeros, panel, first + 1, stored, PANEL, RUNS, ZERO_RUNS)
        second_scale = load_next_group(scale, scales, panel, first + 1, summed, PANEL, RUNS, GROUP_RUNS)
    total = tl.zeros((PANEL, TILE_ROWS), tl.float32)
    dtype: tl.constexpr = values.dtype.element_ty

    for pass_first in tl.range(first, last, PASS_RUNS, num_stages=STAGES):
        next_run = pass_first + PASS_RUNS
        next_zero = load_next_group(zero, zeros, panel, next_run, stored, PANEL, RUNS, ZERO_RUNS)
        next_scale = load_next_group(scale, scales, panel, next_run, summed, PANEL, RUNS, GROUP_RUNS)
        if PASS_RUNS == 2:
            later_zero = load_next_group(zero, zeros, panel, next_run + 1, stored, PANEL, RUNS, ZERO_RUNS)
            later_scale = load_next_group(scale, scales, panel, next_run + 1, summed, PANEL, RUNS, GROUP_RUNS)
        for index in tl.static_range(PASS_RUNS):
            run = pass_first + index
            if index == 1:
                zero, scale = second_zero, second_scale
            held = (stored * 0 + run < RUNS)[:, None] | (RUNS % PASS_RUNS == 0)
            code = tl.load(places + run * (PANEL * BYTES), mask=held, other=0)
            if FORMAT == FLOAT4:
                low_weights, high_weights = decode_halves(code, zero[:, None], dtype, FORMAT)
                total = add_float4(total, low_weights, values, live, run * RUN, scale, 0, INPUTS, WHOLE, WARPS)
                total = add_float4(total, high_weights, values, live, run * RUN, scale, 1, INPUTS, WHOLE, WARPS)
            else:
                within = live[:, None] & ((run * RUN + lanes < INPUTS) | WHOLE)[None, :]
                low = tl.load(halves + run * RUN, mask=within, other=0.0)
                within = live[:, None] & ((run * RUN + HALF + lanes < INPUTS) | WHOLE)[None, :]
                high = tl.load(halves + run * RUN + HALF, mask=within, other=0.0)
                if has_half_bytes(FORMAT):
                    low_weights, high_weights = decode_halves(code, zero[:, None], dtype, FORMAT)
                else:
                    high_code = tl.load(places + run * (PANEL * BYTES) + HALF, mask=held, other=0)
                    low_weights = decode_bytes(code, zero[:, None], dtype, FORMAT)
                    high_weights = decode_bytes(high_code, zero[:, None], dtype, FORMAT)
                part = tl.zeros((PANEL, TILE_ROWS), tl.float32)
                part = multiply_tiles(shuffle(low_weights, WARPS, ORDERED), low.T, part)
                part = multiply_tiles(shuffle(high_weights, WARPS, ORDERED), high.T, part)
                total += part * scale.to(tl.float32)[:, None] if GROUP_RUNS else part
        zero, scale = next_zero, next_scale
        if PASS_RUNS == 2:
            second_zero, second_scale = later_zero, later_scale

    if GROUP_RUNS == 0:
        total *= scale.to(tl.float32)[:, None]
    if FORMAT == FLOAT8:
        total *= FLOAT8_FACTOR
    return total


@triton.jit
def add_float4(
    total: tl.tensor, weights: tl.tensor, values: tl.tensor, live: tl.tensor, first: tl.tensor, exponents: tl.tensor,
    HALF: tl.constexpr, INPUTS: tl.constexpr, WHOLE: tl.constexpr, WARPS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """total + the products of half HALF of a run, weights [outputs, 64] in TILE_ORDER: two groups of 32 inputs, whose
    scales multiply their sums. first: input of the run; exponents: of its four groups."""
    OUTPUTS: tl.constexpr = weights.shape[0]
    near, far = tl.split(weights.reshape(OUTPUTS, 4, 2, 8).permute(0, 1, 3, 2))
    lanes = tl.arange(0, 32)
    for group in tl.static_range(2):
        begin = first + HALF * 64 + group * 32
        within = live[:, None] & ((begin + lanes < INPUTS) | WHOLE)[None, :]
        x = tl.load(values[:, None] + begin + lanes[None, :], mask=within, other=0.0)
        own = near.reshape(OUTPUTS, 32) if group == 0 else far.reshape(OUTPUTS, 32)
        part = multiply_tiles(shuffle(own, WARPS, True), x.T, tl.zeros_like(total))
        total += part * power_of_two(exponents, HALF * 2 + group)[:, None]
    return total


@triton.jit
def prefetch(start: tl.tensor, size: tl.tensor) -> None:
    """Begin to read `size` bytes into the cache that all multiprocessors share; from sm_90 on."""
    tl.inline_asm_elementwise(
        "{.reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; mov.u32 $0, t;"
        "@p cp.async.bulk.prefetch.L2.global [$1], $2;}",
        "=r,l,r", [start.to(tl.uint64), size], tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def shuffle(weights: tl.tensor, WARPS: tl.constexpr, ORDERED: tl.constexpr) -> tl.tensor:
    """A tile of 64 bytes of codes, in TILE_ORDER, whose threads have 16 neighbours of an output each as they come from
    memory, or half of each thread's -> the inputs in their own order, the outputs in that in which the matrix units
    take them from those threads: no number moves from one thread to another, which would cost a way through shared
    memory."""
    if ORDERED:
        OUTPUTS: tl.constexpr = weights.shape[0]
        BYTES: tl.constexpr = weights.shape[1]
        parts = weights.reshape(OUTPUTS // (16 * WARPS), 2, WARPS, 8, 4, BYTES // 16, 2, 2)
        weights = parts.permute(0, 2, 1, 3, 5, 6, 4, 7).reshape(OUTPUTS, BYTES)
    return weights


@triton.jit
def order_outputs(OUTPUTS: tl.constexpr, WARPS: tl.constexpr, ORDERED: tl.constexpr) -> tl.tensor:
    """Where `shuffle` has each output from."""
    place = tl.arange(0, OUTPUTS)
    if ORDERED:
        block: tl.constexpr = 16 * WARPS
        place = place // block * block + place // 8 % 2 * (8 * WARPS) + place // 16 % WARPS * 8 + place % 8
    return place


@triton.jit
def load_group(
    source: tl.tensor, panel: tl.tensor, run: tl.tensor, outputs: tl.tensor,
    PANEL: tl.constexpr, RUNS: tl.constexpr, GROUP_RUNS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Scales or zeros of the group that `run` is in, one an output of the panel; past the last run, that one's."""
    place = panel
    if GROUP_RUNS:
        place = panel * tl.cdiv(RUNS, GROUP_RUNS) + min(run, RUNS - 1) // GROUP_RUNS
    return tl.load(source + place * PANEL + outputs)


@triton.jit
def load_next_group(
    group: tl.tensor, source: tl.tensor, panel: tl.tensor, run: tl.tensor, outputs: tl.tensor,
    PANEL: tl.constexpr, RUNS: tl.constexpr, GROUP_RUNS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """As `load_group`; `group` itself where all runs share one."""
    if GROUP_RUNS:
        group = load_group(source, panel, run, outputs, PANEL, RUNS, GROUP_RUNS)
    return group


@triton.jit
def prefetch_groups(
    source: tl.tensor, panel: tl.tensor, first: tl.tensor, last: tl.tensor,
    PANEL: tl.constexpr, RUNS: tl.constexpr, GROUP_RUNS: tl.constexpr,
) -> None:  # fmt: skip
    """All scales or zeros of a panel's runs."""
    if GROUP_RUNS:
        begin, end = first // GROUP_RUNS, tl.cdiv(last, GROUP_RUNS)
        group: tl.constexpr = PANEL * (source.dtype.element_ty.primitive_bitwidth // 8)
        prefetch(source + (panel * tl.cdiv(RUNS, GROUP_RUNS) + begin) * PANEL, (end - begin) * group)


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
