"""The kernels that multiply codes of 4 or 8 bits on a CPU, each with the layout that it reads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..kernels.avx2_linear import avx2_linear, avx2_scratch_size
from ..kernels.code_dots import dots_scratch_size
from ..kernels.code_linear import in_dots, scratch_size
from ..kernels.code_vectors import code_linear_in_vectors, vectors_scratch_size
from ..kernels.instructions import dots
from ..kernels.instructions.address import address_of
from ..kernels.integer_linear import integer_linear, integer_scratch_size, pack_integers, unpack_integers
from ..kernels.layouts import int16_activations
from ..kernels.layouts.codes import pack_codes, unpack_codes
from ..kernels.layouts.expand import INT4, INT8


@dataclass(frozen=True, slots=True)
class CodeKernel:
    name: str
    step: int
    """Inputs that are multiplied at once: a group is a multiple, or all inputs."""
    pack: Callable[[np.ndarray, int], np.ndarray]
    """(values [N, K] uint8, kind) -> codes."""
    unpack: Callable[[np.ndarray, int, int, int, int], np.ndarray]
    """(codes, kind, N, first, last) -> values.T [last - first, N]; `first` is even."""
    scratch_bytes: Callable[[int, int, int], int]
    """(rows, inputs, workers)"""
    multiply: Any
    """Compiled: (kind, addresses of codes, scales, zeros, bias, x, what x is multiplied by first or 0, scratch, y, then
    M, N, K, group, workers)"""

    def address(self) -> int:
        """The address of `multiply`, as any_linear calls it."""
        return address_of(self.multiply)


def _floats(rows: int, inputs: int, workers: int) -> int:
    return 4 * max(scratch_size(rows, inputs, workers), dots_scratch_size(rows, inputs, workers))


def _vector_floats(rows: int, inputs: int, workers: int) -> int:
    return 4 * vectors_scratch_size(rows, inputs)


VECTORS: Final = CodeKernel("vectors", dots.STEP, pack_codes, unpack_codes, _vector_floats, code_linear_in_vectors)
"""Any kind of code, on any CPU."""
DOTS: Final = CodeKernel("dots", dots.STEP, pack_codes, unpack_codes, _floats, in_dots(addends=1))
"""Any kind of code, on a CPU with dot products of bfloat16, to which activations are rounded."""
SPLIT_DOTS: Final = CodeKernel("split dots", dots.STEP, pack_codes, unpack_codes, _floats, in_dots(addends=2))
"""The same with 16 bits of each activation."""
INTEGERS: Final = CodeKernel(
    "integers",
    int16_activations.STEP,
    pack_integers,
    unpack_integers,
    avx2_scratch_size if dots.HAS_AVX2 else integer_scratch_size,
    avx2_linear if dots.HAS_AVX2 else integer_linear,
)
"""INT4 and INT8 on a CPU with dot products of bytes, or else of words, with longer steps and 16 bits of each
activation: faster than SPLIT_DOTS, and in matrix registers faster than DOTS."""


KERNELS: Final = {kernel.name: kernel for kernel in (VECTORS, DOTS, SPLIT_DOTS, INTEGERS)}


def choose_kernel(kind: int, group: int, inputs: int, exact: bool = True) -> CodeKernel | None:
    """The fastest here that keeps 16 bits of each activation, or, not `exact`, bfloat16's 8. None where no kernel takes
    groups of so many inputs."""
    kernels = [(SPLIT_DOTS if exact else DOTS) if dots.HAS_BFLOAT16 else VECTORS]
    prefers_bytes = exact or dots.HAS_MATRIX or not dots.HAS_BFLOAT16
    if dots.HAS_INTEGERS and kind in (INT4, INT8) and prefers_bytes:
        kernels.insert(0, INTEGERS)
    return next((kernel for kernel in kernels if group == inputs or group % kernel.step == 0), None)
