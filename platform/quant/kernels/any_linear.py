# mypy: allow-untyped-decorators
"""y = x W^T + bias by where W is in memory: the one door for compiled callers, however the weights are stored.

Where a linear is, int64: addresses of weights and bias, then of the kernel that multiplies by them
(`instructions/address.py`), for codes the addresses of scales and zero points, the kind of code and the steps of a
group; at last what inputs are multiplied by first, 0 for nothing.
"""

from typing import Any, Final

from numba import njit

from .instructions.address import call

WEIGHTS, BIAS, KERNEL, SCALES, ZEROS, KIND, GROUP, FACTORS = range(8)
WIDTH: Final = 8


@njit
def any_linear(where: Any, x: int, scratch: int, y: int, m: int, n: int, k: int, workers: int) -> None:
    """where [WIDTH]; the others are addresses and sizes."""
    if m:
        call(
            where[KERNEL],
            (
                where[KIND], where[WEIGHTS], where[SCALES], where[ZEROS], where[BIAS], x, where[FACTORS], scratch, y, m,
                n, k, where[GROUP], workers,
            ),
        )  # fmt: skip
