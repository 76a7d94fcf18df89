"""Packed codes to a dense [outputs, in] in 16 bits (triton), for products of many rows."""

import triton
import triton.language as tl

from .decode import FLOAT8, FLOAT8_FACTOR, INTEGER4, decode


@triton.jit(do_not_specialize=["first_panel"])
def dequantize(
    dense: tl.tensor, codes: tl.tensor, scales: tl.tensor, zeros: tl.tensor, first_panel: tl.tensor,
    FORMAT: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, RUN: tl.constexpr, RUNS: tl.constexpr,
    GROUP_RUNS: tl.constexpr, ZERO_RUNS: tl.constexpr, PANEL: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (runs, panels): dense[0] is the first output of first_panel. Rounded once, as scale * (code - zero)."""
    run, panel = tl.program_id(0), tl.program_id(1)
    BYTES: tl.constexpr = RUN // 2 if FORMAT == INTEGER4 else RUN
    rows, lanes = tl.arange(0, PANEL), tl.arange(0, BYTES)
    outputs = (first_panel + panel) * PANEL + rows
    inside = outputs < OUTPUTS
    start = ((first_panel + panel).to(tl.int64) * RUNS + run) * (PANEL * BYTES)
    code = tl.load(codes + start + rows[:, None] * BYTES + lanes[None, :])
    group = run // GROUP_RUNS if GROUP_RUNS else 0
    zero_group = run // ZERO_RUNS if ZERO_RUNS else 0
    zero = tl.load(zeros + zero_group * OUTPUTS + outputs, mask=inside, other=0)
    scale = tl.load(scales + group * OUTPUTS + outputs, mask=inside, other=0.0).to(tl.float32)
    if FORMAT == FLOAT8:
        scale *= FLOAT8_FACTOR
    places = dense + (panel * PANEL + rows)[:, None].to(tl.int64) * INPUTS + (run * RUN + lanes)[None, :]
    for half in tl.static_range(RUN // BYTES):
        nibbles = code >> 4 * half & 15 if FORMAT == INTEGER4 else code
        values = decode(nibbles, zero[:, None], dense.dtype.element_ty, FORMAT).to(tl.float32) * scale[:, None]
        here = inside[:, None] & (run * RUN + half * BYTES + lanes < INPUTS)[None, :]
        tl.store(places + half * BYTES, values.to(dense.dtype.element_ty), mask=here)
