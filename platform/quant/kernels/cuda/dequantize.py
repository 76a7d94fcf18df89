"""Packed codes to a dense [outputs, in] in 16 bits (triton), for products of many rows."""

import triton
import triton.language as tl

from .decode import FLOAT8, FLOAT8_FACTOR, INTEGER4, decode_bytes, decode_halves


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
    zero = tl.load(zeros + zero_group * OUTPUTS + outputs, mask=inside, other=0)[:, None]
    scale = tl.load(scales + group * OUTPUTS + outputs, mask=inside, other=0.0).to(tl.float32)[:, None]
    dtype: tl.constexpr = dense.dtype.element_ty
    places = dense + (panel * PANEL + rows)[:, None].to(tl.int64) * INPUTS + (run * RUN + lanes)[None, :]
    here = inside[:, None] & (run * RUN + lanes < INPUTS)[None, :]
    if FORMAT == INTEGER4:
        low, high = decode_halves(code, zero, dtype)
        tl.store(places, (low.to(tl.float32) * scale).to(dtype), mask=here)
        here = inside[:, None] & (run * RUN + BYTES + lanes < INPUTS)[None, :]
        tl.store(places + BYTES, (high.to(tl.float32) * scale).to(dtype), mask=here)
    else:
        if FORMAT == FLOAT8:
            scale *= FLOAT8_FACTOR
        tl.store(places, (decode_bytes(code, zero, dtype, FORMAT).to(tl.float32) * scale).to(dtype), mask=here)
