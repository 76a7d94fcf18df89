# mypy: allow-untyped-decorators
"""Work that compiled workers share out among themselves as they get on."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic


@intrinsic
def claim(typing: Any, counter: Any) -> Any:
    """Add one to counter[0], atomically; answers what it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", data, ir.Constant(data.type.pointee, 1), "monotonic")

    return types.int64(counter), generate


@njit
def shares_of(count: int, workers: int) -> Any:
    """Where the shares of `count` items begin that workers take one after the other, and the end: neighbours in memory,
    and ever fewer of them, so that all workers end together."""
    bounds = np.empty(count + 1, np.int64)
    bounds[0] = number = 0
    while bounds[number] < count:
        left = count - bounds[number]
        bounds[number + 1] = bounds[number] + max(1, left // (2 * workers))
        number += 1
    return bounds[: number + 1]


@njit
def counter(first: int) -> Any:
    """What `claim` counts on."""
    return np.full(1, first, np.int64)
