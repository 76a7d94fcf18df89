"""read_header: the table of contents of a safetensors file, checked to the last byte before anybody uses it.

Layout: 8 bytes little-endian length N, N bytes of JSON (name -> dtype, shape, data_offsets), then the tensors' bytes.
"""

import math
import re
import sys
from io import FileIO
from typing import Any, Final, NamedTuple

from .foreign_formats import BEGINNING, name_format
from .manifest import BaseSignature, TensorInfo
from .report import Report, quote
from .strict_json import parse_json
from .values import read_bytes

MAX_HEADER: Final = 1 << 20
SMALL_HEADER: Final = 256 << 10
"""Allowed for a file of any size: a deep base has thousands of tensors, and those of a small rank are small."""
MAX_TENSORS: Final = 20_000
PER_MODULE: Final = 3
"""Tensors of one module: A, B, and a magnitude or a bias."""
BYTES_PER_TENSOR: Final = 200
"""Of the header: an expert's name is the longest."""
MAX_DIMENSIONS: Final = 8
ITEM_SIZES: Final = {"F32": 4, "F16": 2, "BF16": 2}
SAVE_REMEDY: Final = "save the adapter again with PEFT's save_pretrained"

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")


class Limits(NamedTuple):
    """The most of a file that is read."""

    tensors: int
    header: int
    """Bytes."""


ACCEPTED: Final = Limits(sys.maxsize, sys.maxsize)
"""Of a file that was judged before."""


def limits_of(base: BaseSignature, size: int) -> Limits:
    """Of a file of `size` bytes for this base. A base of many experts has tens of thousands of modules."""
    of_modules = PER_MODULE * sum(module.count for module in base.modules.values())
    of_any = min(MAX_HEADER, size // 100 + SMALL_HEADER)
    return Limits(max(MAX_TENSORS, of_modules), max(of_any, BYTES_PER_TENSOR * of_modules))


def read_header(
    file: FileIO, size: int, report: Report, limits: Limits, empty_allowed: bool = False
) -> tuple[TensorInfo, ...]:
    """The tensors of an open file of `size` bytes, in the order of their bytes. `empty_allowed`: they may have none.

    Each thing wrong is a failure in `report`; after one there are none, for nothing can be said of what they hold.
    EOFError where the file has become shorter than `size`.
    """
    try:
        entries, data_start = _read_entries(file, size, limits)
    except ValueError as error:
        report.fail("header", f"adapter_model.safetensors cannot be read: {error}", SAVE_REMEDY)
        return ()
    tensors, problems = _read_tensors(entries, data_start, empty_allowed)
    problems = problems or _layout_problems(tensors, data_start, size)
    report.fail_all("header", problems, SAVE_REMEDY)
    report.settle("header", f"{len(tensors)} tensors fill the file's {size:,} bytes with no gaps or overlaps")
    return () if problems else tensors


def _read_entries(file: FileIO, size: int, limits: Limits) -> tuple[dict[str, Any], int]:
    beginning = read_bytes(file, min(size, BEGINNING))
    _refuse_other_formats(beginning)
    if size < 10:
        raise ValueError(f"it has only {size:,} bytes")
    length = int.from_bytes(beginning[:8], "little")
    if length > size - 8:
        raise ValueError(f"its header claims {length:,} bytes, the file has {size:,}")
    if length > limits.header:
        most = f"at most {limits.header:,} are allowed for a file of {size:,} bytes"
        raise ValueError(f"its header has {length:,} bytes; {most}")
    file.seek(8)
    header = read_bytes(file, length)
    if not header.startswith(b"{"):
        raise ValueError("its header does not begin with '{': it is not a safetensors file")
    if header.count(b"{") > 2 * limits.tensors or header.count(b"[") > 4 * limits.tensors:  # lists take the most memory
        raise ValueError(f"it holds more than {limits.tensors} tensors")
    entries = parse_json(header, max_depth=3)
    _check_metadata(entries.pop("__metadata__", {}))
    if not entries:
        raise ValueError("it holds no tensors")
    if len(entries) > limits.tensors:
        raise ValueError(f"it holds {len(entries)} tensors; at most {limits.tensors} are allowed")
    return entries, 8 + length


def _refuse_other_formats(beginning: bytes) -> None:
    # A safetensors file may begin with any length byte, but its ninth byte is always '{'.
    if beginning[8:9] != b"{":
        name = "a JSON document" if beginning.startswith(b"{") else name_format(beginning)
        if name is not None:
            raise ValueError(f"it is {name}; only safetensors files are accepted")


def _check_metadata(metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("__metadata__ in its header is not a map from text to text")


def _read_tensors(
    entries: dict[str, Any], data_start: int, empty_allowed: bool
) -> tuple[tuple[TensorInfo, ...], list[str]]:
    """The tensors by place, and what is wrong with those that cannot be read."""
    tensors, problems = [], []
    for name, entry in entries.items():
        try:
            tensors.append(_read_tensor(name, entry, data_start, empty_allowed))
        except ValueError as error:
            problems.append(f"{quote(name)} {error}")
    return tuple(sorted(tensors, key=lambda tensor: (tensor.start, tensor.end))), problems


def _read_tensor(name: str, entry: object, data_start: int, empty_allowed: bool) -> TensorInfo:
    if not _NAME.fullmatch(name):
        raise ValueError(
            "is not a valid name: tensor names contain letters, digits, '_', '-' and '.' only, at most 256"
        )
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError("is not described by exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_SIZES:
        raise ValueError(f"has dtype {quote(dtype)}; F32, F16 and BF16 are accepted")
    if not _are_counts(shape) or not 1 <= len(shape) <= MAX_DIMENSIONS:
        raise ValueError(f"has the shape {quote(shape)}, which is not a list of 1 to {MAX_DIMENSIONS} whole numbers")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"has the data_offsets {quote(offsets)}, which are not two whole numbers")
    bytes_needed = math.prod(shape) * ITEM_SIZES[dtype]
    if bytes_needed == 0 and not empty_allowed:
        raise ValueError(f"is empty: its shape is {quote(shape)}")
    if offsets[1] - offsets[0] != bytes_needed:
        raise ValueError(f"needs {quote(bytes_needed)} bytes for its shape, but has {quote(offsets[1] - offsets[0])}")
    return TensorInfo(name, dtype, tuple(shape), data_start + offsets[0], data_start + offsets[1])


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _layout_problems(tensors: tuple[TensorInfo, ...], data_start: int, size: int) -> list[str]:
    problems, position = [], data_start
    for tensor in tensors:
        if tensor.start != position:
            what = "overlaps the tensor before it" if tensor.start < position else "leaves a gap before it"
            problems.append(f"{quote(tensor.name)} {what}")
        position = max(position, tensor.end)
    if position > size:
        problems.append(f"the tensors end at byte {position}, the file at {size}: it is cut off")
    elif position < size:
        problems.append(f"{size - position:,} bytes after the last tensor belong to no tensor")
    return problems
