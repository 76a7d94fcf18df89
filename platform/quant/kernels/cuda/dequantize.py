"""Packed codes to a dense [outputs, in] in 16 bits (triton), for products of many rows."""

import triton
import triton.language as tl

from .decode import FLOAT4, FLOAT8, FLOAT8_FACTOR, decode_bytes, decode_halves, has_half_bytes, power_of_two
from .multiply import load_group


@triton.jit(do_not_specialize=["first_panel"])
def dequantize(
    dense: tl.tensor, codes: tl.tensor, scales: tl.tensor, zeros: tl.tensor, first_panel: tl.tensor,
    FORMAT: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, RUN: tl.constexpr, RUNS: tl.constexpr,
    GROUP_RUNS: tl.constexpr, ZERO_RUNS: tl.constexpr, ORDERED: tl.constexpr, PANEL: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (runs, panels): dense[0] is the first output of first_panel. Rounded once, as scale * (code - zero)."""
    run, place = tl.program_id(0), tl.program_id(1)
    panel = first_panel + place
    BYTES: tl.constexpr = RUN // 2 if has_half_bytes(FORMAT) else RUN
    rows, lanes = tl.arange(0, PANEL), tl.arange(0, BYTES)
    inside = panel * PANEL + rows < OUTPUTS
    start = (panel.to(tl.int64) * RUNS + run) * (PANEL * BYTES)
    code = tl.load(codes + start + rows[:, None] * BYTES + lanes[None, :])
    zero = load_group(zeros, panel, run, rows, PANEL, RUNS, ZERO_RUNS)[:, None]
    scale = load_group(scales, panel, run, rows, PANEL, RUNS, GROUP_RUNS)[:, None]
    dtype: tl.constexpr = dense.dtype.element_ty
    places = dense + (place * PANEL + rows)[:, None].to(tl.int64) * INPUTS + (run * RUN + lanes)[None, :]
    here = inside[:, None] & (run * RUN + lanes < INPUTS)[None, :]
    if FORMAT == FLOAT4:  # codes lie in TILE_ORDER, of two groups eight in turn
        low_scale = power_of_two(scale, (lanes // 8 % 2)[None, :])
        high_scale = power_of_two(scale, (lanes // 8 % 2 + 2)[None, :])
    else:
        scale = scale.to(tl.float32)
        low_scale, high_scale = scale, scale
    if has_half_bytes(FORMAT):
        low, high = decode_halves(code, zero, dtype, FORMAT)
        tl.store(places, in_order((low.to(tl.float32) * low_scale).to(dtype), ORDERED), mask=here)
        here = inside[:, None] & (run * RUN + BYTES + lanes < INPUTS)[None, :]
        tl.store(places + BYTES, in_order((high.to(tl.float32) * high_scale).to(dtype), ORDERED), mask=here)
    else:
        if FORMAT == FLOAT8:
            scale *= FLOAT8_FACTOR
        weights = (decode_bytes(code, zero, dtype, FORMAT).to(tl.float32) * scale).to(dtype)
        tl.store(places, in_order(weights, ORDERED), mask=here)


@triton.jit
def in_order(weights: tl.tensor, ORDERED: tl.constexpr) -> tl.tensor:
    """Inputs by their numbers, from TILE_ORDER where codes lie in it."""
    OUTPUTS: tl.constexpr = weights.shape[0]
    BYTES: tl.constexpr = weights.shape[1]
    if ORDERED:
        parts = weights.reshape(OUTPUTS, BYTES // 64, 4, 4, 2, 2)
        weights = parts.permute(0, 1, 3, 4, 2, 5).reshape(OUTPUTS, BYTES)
    return weights
