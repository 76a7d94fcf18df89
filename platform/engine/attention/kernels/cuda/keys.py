"""What every sweep over a sequence's keys shares (triton): which keys queries see, and where they lie."""

from typing import Final

import triton
import triton.language as tl

LOWEST: Final = tl.constexpr(-1e30)
"""Stands for no score yet; finite, so that differences stay numbers."""
LOG2_E: Final = tl.constexpr(1.4426950408889634)
LEAST_FACTOR: Final = tl.constexpr(1e-30)
"""That scores are multiplied by: above 0, so that a score of minus infinity stays one."""


@triton.jit
def is_between(position: tl.tensor, first: tl.tensor, end: tl.tensor, WINDOW: tl.constexpr) -> tl.tensor:
    """Without a window the first key is that of position 0."""
    return (position >= first) & (position < end) if WINDOW else position < end


@triton.jit
def is_seen(query: tl.tensor, key: tl.tensor, WINDOW: tl.constexpr) -> tl.tensor:
    """By positions."""
    distance = query - key
    return (distance >= 0) & (distance < WINDOW) if WINDOW else distance >= 0


@triton.jit
def load_block(table: tl.tensor, position: tl.tensor, end: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """The block of each position below `end`."""
    return tl.load(table + position.to(tl.uint32) // BLOCK, mask=position < end, other=0)


@triton.jit
def find_slot(
    block: tl.tensor, position: tl.tensor, head: tl.tensor, KV_HEADS: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Where a head's key or value of each position lies, in rows of the cache."""
    line = (block.to(tl.int64) if WIDE else block) * KV_HEADS + head
    return line * BLOCK + (position.to(tl.uint32) % BLOCK).to(tl.int32)


@triton.jit
def cap(score: tl.tensor, soft_cap: tl.tensor) -> tl.tensor:
    """soft_cap * tanh(score / soft_cap)"""
    return soft_cap - 2.0 * soft_cap / (1.0 + tl.exp2(score * (2.0 * LOG2_E / soft_cap)))
