"""y = x W^T + bias over packed codes (triton): x [rows, in] bfloat16 or float16, W as in layout.py, sums in fp32.

The products are of exact integers (or float8 values): a group's scale multiplies their sum, not each weight, which
costs less and rounds nothing. As many programs as the card holds share out all runs of inputs evenly; where several
have a part of the same sums, the last of them adds these up in one fixed order (merge.py).
"""

import triton
import triton.language as tl

from .chain import let_next_begin, prefetch, wait_for_previous
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
from .merge import add_parts, arrive_last, find_part


@triton.jit(do_not_specialize=["rows", "share"])
def multiply(
    y: tl.tensor, x: tl.tensor, codes: tl.tensor, scales: tl.tensor, zeros: tl.tensor, bias: tl.tensor,
    parts: tl.tensor, arrivals: tl.tensor, rows: tl.tensor, share: tl.tensor,
    FORMAT: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, RUN: tl.constexpr, RUNS: tl.constexpr,
    GROUP_RUNS: tl.constexpr, ZERO_RUNS: tl.constexpr, ORDERED: tl.constexpr, PANEL: tl.constexpr,
    WIDTH: tl.constexpr, STRIDE: tl.constexpr, BIAS: tl.constexpr, TILE_ROWS: tl.constexpr, STAGES: tl.constexpr,
    WARPS: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (programs,): each takes `share` runs, of one tile after the other. A tile is WIDTH panels, one or two, for
    TILE_ROWS rows; those of the same panels are neighbours. y [rows, STRIDE]; parts: 2 tiles of fp32 a program;
    arrivals: of merge.py. GROUP_RUNS and ZERO_RUNS: runs that share scales and zeros, 0 where all do. ORDERED: codes
    lie in TILE_ORDER.
    """
    BYTES: tl.constexpr = RUN // 2 if has_half_bytes(FORMAT) else RUN
    WIDE: tl.constexpr = WIDTH * PANEL
    PANELS: tl.constexpr = (OUTPUTS + PANEL - 1) // PANEL
    program = tl.program_id(0)
    let_next_begin(CHAINED)
    row_blocks = tl.cdiv(rows, TILE_ROWS)
    begin = program * share
    end = min(begin + share, (OUTPUTS + WIDE - 1) // WIDE * RUNS * row_blocks)
    if CHAINED:
        first = begin % RUNS
        last = min(first + end - begin, RUNS)
        count = min(last - first, STAGES)
        for index in tl.static_range(WIDTH):
            panel = min(begin // RUNS // row_blocks * WIDTH + index, PANELS - 1)
            prefetch(codes + (panel * RUNS + first) * (PANEL * BYTES), count * (PANEL * BYTES))
            prefetch_groups(scales, panel, first, last, PANEL, RUNS, GROUP_RUNS)
            prefetch_groups(zeros, panel, first, last, PANEL, RUNS, ZERO_RUNS)
    wait_for_previous(CHAINED)
    summed = order_outputs(PANEL, WARPS, ORDERED)
    for tile in tl.range(begin // RUNS, tl.cdiv(end, RUNS), num_stages=1, disable_licm=True):
        tile_begin = tile * RUNS
        first, last = max(begin - tile_begin, 0), min(end - tile_begin, RUNS)
        panel, first_row = tile // row_blocks * WIDTH, tile % row_blocks * TILE_ROWS
        row = first_row + tl.arange(0, TILE_ROWS)
        live = row < rows
        total, other_total = sum_runs(
            x + row * INPUTS, live, codes, scales, zeros, panel, first, last,
            FORMAT, INPUTS, RUN, RUNS, GROUP_RUNS, ZERO_RUNS, ORDERED, PANEL, PANELS, WIDTH, STAGES, WARPS,
        )  # fmt: skip
        output = panel * PANEL
        if last - first == RUNS:
            store(y, total, bias, row, live, output + summed, OUTPUTS, STRIDE, BIAS)
            if WIDTH == 2:
                store(y, other_total, bias, row, live, output + PANEL + summed, OUTPUTS, STRIDE, BIAS)
        else:
            part = find_part(parts, program, share, tile_begin, WIDE * TILE_ROWS)
            places = part + tl.arange(0, TILE_ROWS)[:, None] * WIDE + summed[None, :]
            tl.store(places, total.T, mask=live[:, None])
            if WIDTH == 2:
                tl.store(places + PANEL, other_total.T, mask=live[:, None])
            first_program, last_program = tile_begin // share, (tile_begin + RUNS - 1) // share
            if arrive_last(arrivals + first_program, last_program - first_program):
                add_parts(
                    y, parts, bias, first_program, last_program, share, tile_begin, first_row, rows, output,
                    OUTPUTS, STRIDE, WIDE, TILE_ROWS, BIAS,
                )  # fmt: skip


@triton.jit
def store(
    y: tl.tensor, total: tl.tensor, bias: tl.tensor, row: tl.tensor, live: tl.tensor, outputs: tl.tensor,
    OUTPUTS: tl.constexpr, STRIDE: tl.constexpr, BIAS: tl.constexpr,
) -> None:  # fmt: skip
    """y[row, outputs] = total [outputs, rows] + bias."""
    inside = outputs < OUTPUTS
    if BIAS:
        total += tl.load(bias + outputs, mask=inside, other=0.0).to(tl.float32)[:, None]
    results = y + row[:, None] * STRIDE + outputs[None, :]
    tl.store(results, total.T.to(y.dtype.element_ty), mask=live[:, None] & inside[None, :])


@triton.jit
def sum_runs(
    values: tl.tensor, live: tl.tensor, codes: tl.tensor, scales: tl.tensor, zeros: tl.tensor, panel: tl.tensor,
    first: tl.tensor, last: tl.tensor,
    FORMAT: tl.constexpr, INPUTS: tl.constexpr, RUN: tl.constexpr, RUNS: tl.constexpr, GROUP_RUNS: tl.constexpr,
    ZERO_RUNS: tl.constexpr, ORDERED: tl.constexpr, PANEL: tl.constexpr, PANELS: tl.constexpr, WIDTH: tl.constexpr,
    STAGES: tl.constexpr, WARPS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """[PANEL, rows] of `panel` and, if WIDTH is 2, of the next, outputs as `order_outputs` has them: the sum of the
    runs `first` to `last` - 1. After the last of PANELS that one comes again.

    values: where each row is [rows]; codes: of the whole weight. Scales and zero
    points are read a run before their use: nothing else hides that read. `stored` are outputs as they lie in memory,
    `summed` those of the sums.
    """
    BYTES: tl.constexpr = RUN // 2 if has_half_bytes(FORMAT) else RUN
    HALF: tl.constexpr = RUN // 2
    WHOLE: tl.constexpr = INPUTS % RUN == 0
    lanes, stored, summed = tl.arange(0, HALF), tl.arange(0, PANEL), order_outputs(PANEL, WARPS, ORDERED)
    places, halves = codes + stored[:, None] * BYTES + lanes[None, :], values[:, None] + lanes[None, :]
    zero = load_group(zeros, panel, first, stored, PANEL, RUNS, ZERO_RUNS)
    scale = load_group(scales, panel, first, summed, PANEL, RUNS, GROUP_RUNS)
    total = tl.zeros((PANEL, values.shape[0]), tl.float32)
    other_total = total
    if WIDTH == 2:
        other = min(panel + 1, PANELS - 1)
        other_zero = load_group(zeros, other, first, stored, PANEL, RUNS, ZERO_RUNS)
        other_scale = load_group(scales, other, first, summed, PANEL, RUNS, GROUP_RUNS)

    for run in tl.range(first, last, num_stages=STAGES):
        next_zero = load_next_group(zero, zeros, panel, run + 1, stored, PANEL, RUNS, ZERO_RUNS)
        next_scale = load_next_group(scale, scales, panel, run + 1, summed, PANEL, RUNS, GROUP_RUNS)
        if WIDTH == 2:
            next_other_zero = load_next_group(other_zero, zeros, other, run + 1, stored, PANEL, RUNS, ZERO_RUNS)
            next_other_scale = load_next_group(other_scale, scales, other, run + 1, summed, PANEL, RUNS, GROUP_RUNS)
        place = places + (panel * RUNS + run) * (PANEL * BYTES)
        if WIDTH == 2:
            other_place = places + (other * RUNS + run) * (PANEL * BYTES)
        if FORMAT == FLOAT4:
            total = add_float4_run(total, place, zero, scale, values, live, run * RUN, INPUTS, WHOLE, WARPS)
            if WIDTH == 2:
                other_total = add_float4_run(
                    other_total, other_place, other_zero, other_scale, values, live, run * RUN, INPUTS, WHOLE, WARPS
                )
        else:
            within = live[:, None] & ((run * RUN + lanes < INPUTS) | WHOLE)[None, :]
            low = tl.load(halves + run * RUN, mask=within, other=0.0)
            within = live[:, None] & ((run * RUN + HALF + lanes < INPUTS) | WHOLE)[None, :]
            high = tl.load(halves + run * RUN + HALF, mask=within, other=0.0)
            total = add_run(total, place, zero, scale, low, high, FORMAT, GROUP_RUNS, ORDERED, WARPS)
            if WIDTH == 2:
                other_total = add_run(
                    other_total, other_place, other_zero, other_scale, low, high, FORMAT, GROUP_RUNS, ORDERED, WARPS
                )
        if WIDTH == 2:
            other_zero, other_scale = next_other_zero, next_other_scale
        zero, scale = next_zero, next_scale

    factor = FLOAT8_FACTOR if FORMAT == FLOAT8 else 1.0
    total *= factor if GROUP_RUNS else scale.to(tl.float32)[:, None] * factor
    if WIDTH == 2:
        other_total *= factor if GROUP_RUNS else other_scale.to(tl.float32)[:, None] * factor
    return total, other_total


@triton.jit
def add_run(
    total: tl.tensor, place: tl.tensor, zero: tl.tensor, scale: tl.tensor, low: tl.tensor, high: tl.tensor,
    FORMAT: tl.constexpr, GROUP_RUNS: tl.constexpr, ORDERED: tl.constexpr, WARPS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """total [PANEL, rows] and what a run adds to it, by its scale if it is of a group. place: of its codes; low and
    high: the halves [rows, RUN / 2] of its inputs."""
    code = tl.load(place)
    if has_half_bytes(FORMAT):
        low_weights, high_weights = decode_halves(code, zero[:, None], low.dtype, FORMAT)
    else:
        low_weights = decode_bytes(code, zero[:, None], low.dtype, FORMAT)
        high_weights = decode_bytes(tl.load(place + low.shape[1]), zero[:, None], low.dtype, FORMAT)
    part = multiply_tiles(shuffle(low_weights, WARPS, ORDERED), low.T, tl.zeros(total.shape, tl.float32))
    part = multiply_tiles(shuffle(high_weights, WARPS, ORDERED), high.T, part)
    return total + (part * scale.to(tl.float32)[:, None] if GROUP_RUNS else part)


@triton.jit
def add_float4_run(
    total: tl.tensor, place: tl.tensor, zero: tl.tensor, scale: tl.tensor, values: tl.tensor, live: tl.tensor,
    first: tl.tensor, INPUTS: tl.constexpr, WHOLE: tl.constexpr, WARPS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """As `add_run`, of FLOAT4; first: input of the run."""
    low, high = decode_halves(tl.load(place), zero[:, None], values.dtype.element_ty, FLOAT4)
    total = add_float4(total, low, values, live, first, scale, 0, INPUTS, WHOLE, WARPS)
    return add_float4(total, high, values, live, first, scale, 1, INPUTS, WHOLE, WARPS)


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
