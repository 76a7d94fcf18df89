"""Work that compiled workers share out among themselves as they get on."""

from typing import Any

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


@njit(inline="always")
def panels_at_once(panels: int, workers: int, most: int = 1 << 30, parts: int = 8) -> int:
    """How many a worker should claim at a time: a part of its share, so that it waits little for a slow one."""
    return max(1, min(most, panels // (parts * workers)))
