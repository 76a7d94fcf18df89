"""Where a step works: arrays of one allocation."""

import math
from itertools import accumulate
from typing import Any, Final

import torch

from ..kernels import arguments
from .fits import Linear

ALIGNMENT: Final = 16
"""Floats of a cache line."""


def make_rooms(
    tokens: int, rows: int, model: arguments.Model, sizes: arguments.Sizes, linears: list[Linear]
) -> arguments.Workspace:
    """For so many tokens, of which `rows` are sampled. linears: one of each kernel and size."""
    return arguments.Workspace(*_cut(_shapes(tokens, rows, model, sizes, linears)))


def _shapes(
    tokens: int, rows: int, model: arguments.Model, sizes: arguments.Sizes, linears: list[Linear]
) -> list[tuple[int, ...]]:
    """In the order of Workspace."""
    hidden, heads = (tokens, sizes.hidden), sizes.heads * sizes.head_dim
    widths = model.table[:, arguments.WIDTHS : arguments.LINEARS].max(axis=0).reshape(arguments.GROUPS, 2)
    gated = tokens if model.table[:, arguments.HAS_GATE].any() else 0
    return [
        *[hidden] * 3,
        (tokens * widths[arguments.INPUTS, 1],),
        (tokens * widths[arguments.OUTPUT, 0],),
        (tokens * widths[arguments.INNER, 1],),
        (tokens * widths[arguments.DOWN, 0],),
        (gated, heads + 2 * sizes.kv_heads * sizes.head_dim),
        (gated, heads),
        (tokens, sizes.heads, sizes.head_dim),
        *[(rows, sizes.hidden)] * 3,
        (max(-(-linear.scratch_bytes(max(tokens, rows)) // 4) for linear in linears),),
    ]


def _cut(shapes: list[tuple[int, ...]]) -> list[Any]:
    """Arrays of one allocation, each at the start of a cache line."""
    sizes = [math.prod(shape) for shape in shapes]
    starts = list(accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0))
    memory = torch.empty(starts[-1]).numpy()
    pieces = zip(starts, sizes, shapes, strict=False)
    return [memory[start : start + size].reshape(shape) for start, size, shape in pieces]
