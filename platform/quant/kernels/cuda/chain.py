"""Programmatic dependent launch, from sm_90 on: a kernel begins while the one before still runs, does what needs
nothing of it, and waits for its end.

A launch with launch_pdl has all its programs call `wait_for_previous`, even those without work: what comes after it
waits for it alone, and so for everything before. Nothing is written, and nothing read that another kernel writes,
before that.
"""

from typing import Final

import torch
import triton
import triton.language as tl

from .card import find_card

_LINE_BYTES: Final = tl.constexpr(128)
"""That one prefetch brings."""
_LINES: Final = tl.constexpr(8)
"""Of each row."""


def can_chain(device: torch.device) -> bool:
    return find_card(device).can_chain


@triton.jit
def let_next_begin(CHAINED: tl.constexpr) -> None:
    """Once all programs have called it, or have ended."""
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous(CHAINED: tl.constexpr) -> None:
    if CHAINED:
        tl.extra.cuda.gdc_wait()


@triton.jit
def prefetch(start: tl.tensor, size: tl.tensor) -> None:
    """Begin to read `size` bytes into the cache that all multiprocessors share; from sm_90 on."""
    tl.inline_asm_elementwise(
        "{.reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; mov.u32 $0, t;"
        "@p cp.async.bulk.prefetch.L2.global [$1], $2;}",
        "=r,l,r", [start.to(tl.uint64), size], tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def prefetch_rows(weights: tl.tensor, starts: tl.tensor, wanted: tl.tensor, length: tl.tensor) -> None:
    """Has the first lines of `length` elements at each of `starts` [R] brought to the second cache, and waits for none.

    As many as a pipelined loop has on their way at first."""
    LINE: tl.constexpr = _LINE_BYTES * 8 // weights.dtype.element_ty.primitive_bitwidth
    lines = tl.arange(0, _LINES) * LINE
    inside = wanted[:, None] & (lines < length)[None, :]
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.b32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.b32 $0, 0; }", "=r,l,r",
        [(weights + (starts[:, None] + lines[None, :])).to(tl.int64), inside.to(tl.int32)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
