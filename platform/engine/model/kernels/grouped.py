# mypy: allow-untyped-decorators
"""Each expert's linear over the rows of its tokens alone: weights of experts without a token are not read.

Shapes: E experts, P rows, those of an expert side by side. A row's result is the same bits whatever other rows there
are, as of `any_linear`.
"""

from numba import njit

from loraplex.quant.kernels.any_linear import any_linear

from ...kernels.vector import Array


@njit(cache=True, nogil=True)
def multiply_grouped(table: Array, starts: Array, x: Array, y: Array, scratch: Array, workers: int) -> None:
    """x [P, inputs] -> y [P, outputs], float32. table [E, WIDTH] int64: where each expert's linear is, as any_linear
    takes it; starts [E + 1]: where its rows begin; scratch: as much as the most rows of an expert need."""
    for expert in range(len(table)):
        first, last = starts[expert], starts[expert + 1]
        if last > first:
            any_linear(
                table[expert], x[first:last].ctypes.data, scratch.ctypes.data, y[first:last].ctypes.data, last - first,
                y.shape[1], x.shape[1], workers,
            )  # fmt: skip
