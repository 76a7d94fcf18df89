"""cancels_out: A and B may be full of numbers and their product nothing. Tried on one vector, without torch."""

from io import FileIO
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .manifest import ModuleLora, TensorInfo
from .values import read_exactly

ROUNDING: Final = 1e-5
"""Of the sum of all magnitudes: far above what float32 rounds away, far below what any training leaves."""


def cancels_out(file: FileIO, module: ModuleLora) -> bool:
    """Whether B A x is nothing but rounding, for an x that no weights were made for. EOFError where the file ends."""
    exact = np.cos(np.square(np.arange(module.a.shape[1], dtype=np.float64))).astype(np.float32)
    magnitudes = np.abs(exact)
    for tensor in (module.a, module.b):
        weights = _read_floats(file, tensor)
        exact = weights @ exact
        magnitudes = np.abs(weights, out=weights) @ magnitudes
    return float(np.abs(exact).max()) <= ROUNDING * float(magnitudes.max())


def _read_floats(file: FileIO, tensor: TensorInfo) -> NDArray[np.float32]:
    bits: NDArray[Any] = np.empty(tensor.shape, np.uint32 if tensor.dtype == "F32" else np.uint16)
    file.seek(tensor.start)
    read_exactly(file, bits.data.cast("B"))
    if tensor.dtype == "F16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16 if tensor.dtype == "BF16" else bits).view(np.float32)
