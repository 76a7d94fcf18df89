# mypy: allow-untyped-decorators
"""y = x W^T + bias with W as unsigned codes of 4 or 8 bits, by dot products of bytes (`dots.py`): rows of x become
whole numbers of 16 bits in each block of inputs, products are summed exactly, and one multiplication gives a block's
sums their scale.

    y[t, o] = bias[o] + sum over blocks b of scales[o, group of b] * x_scales[t, b]
              * sum over i in b of x_int16[t, i] * (codes[o, i] - zeros[o, group of b])

Shapes: x [M, K] fp32, codes as below, scales and zeros by panels (`codes.py`), bias [N up to whole panels] fp32, y
[M, N] fp32. x is multiplied by factors [K] fp32 first, unless their address is 0. A group is a multiple of STEP inputs,
or all. A row's result does not depend on M, bit for bit.

Codes, whole steps of STEP inputs: [panels, steps, 16, PANEL, 4] uint8; those of 4 bits in half as many bytes, each with
one of the first half of a step's in its low bits and one of the second half in its high bits.
"""

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from .instructions.claim import claim, panels_at_once
from .instructions.dots import BYTES, HAS_BFLOAT16, HAS_MATRIX, ROWS, add_half_bytes, add_integers, done, ready
from .instructions.tile import PANEL
from .instructions.vectors import FLOATS, INT, LANES, Code
from .layouts.expand import INT4, LINE
from .layouts.int16_activations import PER_ROW, STEP, TOKENS, activations_size, write_activations
from .layouts.panels import aligned

BLOCK: Final = 4
"""Most steps of a block: their expanded codes are at home in the first-level cache."""
STRIPE: Final = 256
"""Rows that share an expansion: their outputs of a panel take no more than the first-level cache, and their int16 fit
the second."""
CHUNK: Final = 4
"""Panels a worker takes at a time when there is more than a stripe's work in each."""
PARTS: Final = 6 if HAS_MATRIX else 8
"""Of a worker's share: the more panels it takes at a time, the more often they use activations that are near."""
EXPANDED: Final = STEP * PANEL
"""Bytes of a step's codes of 8 bits."""
STEP_BYTES: Final = (EXPANDED // 2, EXPANDED)
"""By kind of code, INT4 and INT8."""
SUMS: Final = 4 * ROWS * PANEL * 4
"""Bytes of the sums of two products."""
OUTPUTS: Final = STRIPE * PANEL * 4
"""Bytes of the outputs of a stripe's rows in one panel, or of fewer rows in a chunk of panels."""
AHEAD: Final = 4096
"""Bytes of codes of 4 bits on their way to the first-level cache."""
FEW: Final = 1 << 30 if HAS_BFLOAT16 and not HAS_MATRIX else 4
"""So many rows or fewer read codes of 4 bits as they are: each is used too seldom to be worth writing it down. For
vector registers beside BF16 (Zen 4) it never is: they store one in two cycles, and mask it while others multiply."""


def pack_integers(values: np.ndarray, kind: int) -> np.ndarray:
    """values [N, K] uint8 -> codes, one-dimensional; zeros where N or K end early."""
    outputs, inputs = values.shape
    panels, steps = -(-outputs // PANEL), -(-inputs // STEP)
    padded = np.zeros((panels * PANEL, steps * STEP), np.uint8)
    padded[:outputs, :inputs] = values
    fours = padded.reshape(panels, PANEL, steps, STEP // 4, 4).transpose(0, 2, 3, 1, 4)
    packed = aligned(panels * steps * STEP_BYTES[kind], np.uint8)
    if kind == INT4:
        halves = fours.reshape(panels, steps, 2, EXPANDED // 2)
        np.bitwise_or(halves[:, :, 0], halves[:, :, 1] << 4, out=packed.reshape(panels, steps, EXPANDED // 2))
    else:
        packed.reshape(fours.shape)[:] = fours
    return packed


def unpack_integers(codes: np.ndarray, kind: int, outputs: int, first: int, last: int) -> np.ndarray:
    """values.T for the inputs `first` to `last`: [last - first, N] uint8."""
    panels, begin = -(-outputs // PANEL), first // STEP
    steps = codes.reshape(panels, -1, STEP_BYTES[kind])[:, begin : -(-last // STEP)]
    if kind == INT4:
        steps = np.concatenate([steps & 15, steps >> 4], axis=2)
    fours = steps.reshape(panels, -1, STEP // 4, PANEL, 4)
    by_input = fours.transpose(1, 2, 4, 0, 3).reshape(-1, panels * PANEL)
    return np.ascontiguousarray(by_input[first - begin * STEP : last - begin * STEP, :outputs])


@njit(inline="always")
def _takes_turns(m: int) -> bool:
    """Whether panels of a chunk share the activations that the first-level cache holds. In vector registers, which are
    slower, the second-level cache keeps up."""
    return HAS_MATRIX and m > 2 * TOKENS


@njit(inline="always")
def _room_bytes(m: int, steps: int) -> int:
    """Of a worker: expanded codes, sums, outputs."""
    return (CHUNK * steps if _takes_turns(m) else BLOCK) * EXPANDED + SUMS + OUTPUTS


def integer_scratch_size(m: int, k: int, workers: int) -> int:
    """Bytes of scratch that integer_linear needs."""
    return workers * int(_room_bytes(m, -(-k // STEP))) + int(activations_size(m, k)) + -(-k // STEP) * m * PER_ROW * 4


@intrinsic
def expand_half_bytes(typing: Any, codes: Any, target: Any, steps: Any) -> Any:
    """target [steps, EXPANDED] = codes [steps, EXPANDED / 2] of 4 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes, target, steps = arguments
        code = Code(builder)
        with cgutils.for_range(builder, steps, intp=INT) as loop:
            source = builder.add(codes, builder.mul(loop.index, INT(EXPANDED // 2)))
            place = builder.add(target, builder.mul(loop.index, INT(EXPANDED)))
            for line in range(0, EXPANDED // 2, 64):
                code.prefetch(builder.add(source, INT(AHEAD + line)), near=True)
                both = builder.load(code.pointer(source, line, LINE), align=64)
                low = builder.and_(both, ir.Constant(LINE, [15] * 64))
                high = builder.lshr(both, ir.Constant(LINE, [4] * 64))
                builder.store(low, code.pointer(place, line, LINE), align=64)
                builder.store(high, code.pointer(place, line + EXPANDED // 2, LINE), align=64)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@intrinsic
def _store(typing: Any, source: Any, rows: Any, y: Any, stride: Any, columns: Any) -> Any:
    """y [rows, columns] = source [rows, PANEL]; the stride is in bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, rows, y, stride, columns = arguments
        code = Code(builder)
        for vector in range(PANEL // LANES):
            mask = code.lanes_below(builder.sub(columns, INT(vector * LANES)))
            with cgutils.for_range(builder, rows, intp=INT) as loop:
                value = code.load(
                    builder.add(source, builder.mul(loop.index, INT(PANEL * 4))), vector * LANES * 4, FLOATS
                )
                place = builder.add(y, builder.mul(loop.index, stride))
                code.masked_store(value, code.pointer(place, vector * LANES * 4, FLOATS), mask)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@njit
def _multiply(
    half_bytes: bool, weights: int, following: int, count: int, sums: int, activations: int, tile_bytes: int,
    first: int, last: int, usual: int, scales: int, zeros: int, rows_at: int, m: int, bias: int, outputs: int,
) -> None:  # fmt: skip
    """One block's codes for the rows first to last, added to outputs [rows, PANEL]."""
    x, rows = activations + first // TOKENS * tile_bytes, 2 * (last - first)
    own, totals = rows_at + first * 4, rows_at + (m + first) * 4
    if half_bytes:
        add_half_bytes(
            rows, usual, x, tile_bytes, weights, count, following, scales, zeros, own, totals, bias, outputs, sums
        )
    else:
        add_integers(
            rows, usual, x, tile_bytes, weights, count, following, scales, zeros, own, totals, bias, outputs, sums
        )


@njit
def _take_turns(
    kind: int, front: int, end: int, codes: int, scales: int, zeros: int, bias: int, activations: int, expanded: int,
    sums: int, y: int, m: int, n: int, k: int, group: int, block: int,
) -> None:  # fmt: skip
    """All rows of y in the panels front to end, at most CHUNK."""
    steps = (k + STEP - 1) // STEP
    groups, panel_bytes = (steps + group - 1) // group, steps * EXPANDED
    weights, outputs, stripe = codes + front * panel_bytes, sums + SUMS, STRIPE // (end - front)
    stripe -= stripe % (2 * TOKENS)
    if kind == INT4:
        weights = expanded
        for panel in range(front, end):
            expand_half_bytes(codes + panel * (panel_bytes // 2), expanded + (panel - front) * panel_bytes, steps)
    for first in range(0, m, stripe):
        last, rows_at = min(first + stripe, m), activations + activations_size(m, k)
        for step in range(0, steps, block):
            for panel in range(front, end):
                at, place = (panel * groups + step // group) * PANEL, panel - front
                _multiply(
                    False, weights + place * panel_bytes + step * EXPANDED, 0, min(block, steps - step), sums,
                    activations + step * BYTES, steps * BYTES, first, last, 2 * TOKENS, scales + at * 4, zeros + at,
                    rows_at, m, bias + panel * PANEL * 4 if step == 0 else 0, outputs + place * stripe * PANEL * 4,
                )  # fmt: skip
            rows_at += m * PER_ROW * 4
        for panel in range(front, end):
            source = outputs + (panel - front) * stripe * PANEL * 4
            _store(source, last - first, y + (first * n + panel * PANEL) * 4, n * 4, n - panel * PANEL)


@njit(parallel=True, cache=True)
def integer_linear(
    kind: int, codes: int, scales: int, zeros: int, bias: int, x: int, factors: int, scratch: int, y: int, m: int,
    n: int, k: int, group: int, workers: int,
) -> None:  # fmt: skip
    """All are addresses but the kind, the sizes and the group, in steps; scratch has
    integer_scratch_size(m, k, workers) bytes, from a cache line on."""
    steps, total = (k + STEP - 1) // STEP, (n + PANEL - 1) // PANEL
    groups, step_bytes, block = (steps + group - 1) // group, STEP_BYTES[kind], min(group, BLOCK)
    while groups > 1 and group % block:
        block -= 1
    activations, tile_bytes = scratch + workers * _room_bytes(m, steps), steps * BYTES
    write_activations(x, factors, activations, m, k, block)
    usual, expands = 2 * min(m, TOKENS), kind == INT4 and m > FEW
    chunk = panels_at_once(total, workers, CHUNK if m > 2 * TOKENS else total, PARTS)
    counter = np.zeros(1, np.int64)
    for worker in prange(workers):
        room = scratch + worker * _room_bytes(m, steps)
        outputs = room + _room_bytes(m, steps) - OUTPUTS
        sums = outputs - SUMS
        ready(usual)
        begin = claim(counter) * chunk
        while begin < total:
            after = claim(counter) * chunk
            if _takes_turns(m):
                end = min(begin + chunk, total)
                _take_turns(
                    kind, begin, end, codes, scales, zeros, bias, activations, room, sums, y, m, n, k, group, block
                )
                begin = after
                continue
            for panel in range(begin, min(begin + chunk, total)):
                for first in range(0, m, STRIPE):
                    rows_at = activations + activations_size(m, k)
                    for step in range(0, steps, block):
                        count, at = min(block, steps - step), (panel * groups + step // group) * PANEL
                        source = codes + (panel * steps + step) * step_bytes
                        weights, following = source, source + count * step_bytes
                        if step + block >= steps and panel + 1 == min(begin + chunk, total):
                            following = codes + min(after, total - 1) * steps * step_bytes
                        if expands:
                            expand_half_bytes(source, room, count)
                            weights, following = room, 0
                        _multiply(
                            kind == INT4 and not expands, weights, following, count, sums, activations + step * BYTES,
                            tile_bytes, first, min(first + STRIPE, m), usual, scales + at * 4, zeros + at, rows_at, m,
                            bias + panel * PANEL * 4 if step == 0 else 0, outputs,
                        )  # fmt: skip
                        rows_at += m * PER_ROW * 4
                    place = y + (first * n + panel * PANEL) * 4
                    _store(outputs, min(m - first, STRIPE), place, n * 4, n - panel * PANEL)
            begin = after
        done()
