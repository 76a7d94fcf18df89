"""scan_tensor: are the values of a tensor usable weights? Judged on the bit patterns, in bounded memory."""

from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .manifest import TensorInfo

Bits = NDArray[np.unsignedinteger[Any]]
"""Values as they are stored."""

CHUNK_BYTES: Final = 1 << 20
LARGEST_WEIGHT: Final = 65504.0
"""What float16 can hold. No trained weight comes near it, and below it no conversion overflows."""

_BITS: Final[dict[str, tuple[type[np.uint16] | type[np.uint32], int, int, int]]] = {
    "F32": (np.uint32, 0x7FFFFFFF, 0x477FE000, 0x3F800000),
    "F16": (np.uint16, 0x7FFF, 0x7BFF, 0x3C00),
    "BF16": (np.uint16, 0x7FFF, 0x477F, 0x3F80),
}
"""dtype -> (bits, mask of all but the sign, bits of LARGEST_WEIGHT rounded down, of 1). Magnitudes order as bits do."""


@dataclass(frozen=True, slots=True)
class Magnitudes:
    usable: bool
    """No NaN, no infinity, nothing above LARGEST_WEIGHT."""
    largest: float
    """Without its sign."""
    one: bool
    """Every value is 1 or -1."""


def scan_tensor(file: FileIO, tensor: TensorInfo, update: Callable[[memoryview], object]) -> Magnitudes:
    """Judge the tensor's values, and pass its bytes to `update` on the way. EOFError where the file ends early."""
    bits, mask, limit, one = _BITS[tensor.dtype]
    buffer = np.empty(min(CHUNK_BYTES, tensor.end - tensor.start), np.uint8)
    smallest, largest = mask, 0
    file.seek(tensor.start)
    for position in range(tensor.start, tensor.end, CHUNK_BYTES):
        chunk = buffer[: tensor.end - position]
        read_exactly(file, chunk.data)
        update(chunk.data)
        magnitudes = np.bitwise_and(chunk.view(bits), bits(mask))
        smallest, largest = min(smallest, int(magnitudes.min())), max(largest, int(magnitudes.max()))
    value = to_floats(np.array([largest], bits), tensor.dtype)[0]
    return Magnitudes(largest <= limit, float(value), smallest == largest == one)


def same_values(file: FileIO, one: TensorInfo, other: TensorInfo) -> bool:
    """Whether two tensors are the same, bit for bit. EOFError where the file ends early."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    for offset in range(0, one.end - one.start, CHUNK_BYTES):
        count, chunks = min(CHUNK_BYTES, one.end - one.start - offset), []
        for tensor in (one, other):
            file.seek(tensor.start + offset)
            chunks.append(read_bytes(file, count))
        if chunks[0] != chunks[1]:
            return False
    return True


def read_bytes(file: FileIO, count: int) -> bytes:
    """The next `count` bytes. EOFError where the file ends early."""
    data = bytearray(count)
    read_exactly(file, memoryview(data))
    return bytes(data)


def read_exactly(file: FileIO, target: memoryview) -> None:
    while target:
        count = file.readinto(target)
        if not count:
            raise EOFError("the file was cut while it was being read")
        target = target[count:]


def read_bits(file: FileIO, tensor: TensorInfo, memory: NDArray[np.uint8] | None = None) -> Bits:
    """The tensor's values as they are stored, in `memory` [bytes] or some of their own. EOFError where the file ends
    early."""
    if memory is None:
        memory = np.empty(tensor.end - tensor.start, np.uint8)
    file.seek(tensor.start)
    read_exactly(file, memory.data)
    bits: Bits = memory.view(np.uint32 if tensor.dtype == "F32" else np.uint16)
    return bits.reshape(tensor.shape)


def to_floats(bits: Bits, dtype: str) -> NDArray[np.float32]:
    """What stored values of the safetensors type stand for."""
    if dtype == "F16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16 if dtype == "BF16" else bits).view(np.float32)


def convert(bits: Bits, source: str, target: str) -> Bits:
    """Bit patterns of the dtype `source` as those of `target`, rounded to nearest even."""
    return bits if source == target else _FROM_FLOAT[target](to_floats(bits, source))


def _float_to_bfloat16(values: NDArray[np.float32]) -> Bits:
    bits = values.view(np.uint32)
    return ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16)


_FROM_FLOAT: Final[dict[str, Callable[[NDArray[np.float32]], Bits]]] = {
    "F32": lambda values: values.view(np.uint32),
    "F16": lambda values: values.astype(np.float16).view(np.uint16),
    "BF16": _float_to_bfloat16,
}
