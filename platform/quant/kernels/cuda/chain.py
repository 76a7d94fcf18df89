"""Programmatic dependent launch, from sm_90 on: a kernel begins while the one before still runs, does what needs
nothing of it, and waits for its end.

A launch with launch_pdl has all its programs call `wait_for_previous`, even those without work: what comes after it
waits for it alone, and so for everything before. Nothing is written, and nothing read that another kernel writes,
before that.
"""

import torch
import triton
import triton.language as tl

from .card import find_card


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
