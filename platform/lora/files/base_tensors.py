"""BaseTensors: the base's own tensors in its safetensors files, to tell what an adapter changes from what it repeats.

Read without torch, a few rows at a time. The files are the operator's: they are no strangers'.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .manifest import EMBEDDING, HEAD, BaseSignature, TensorInfo
from .values import Bits, convert, read_bits, read_bytes

DTYPES: Final = ("F32", "F16", "BF16")
CHUNK_ROWS: Final = 1024


class BaseTensors:
    def __init__(self, folder: Path, base: BaseSignature) -> None:
        self._folder = folder
        self._renamed = {f"{base.path_of(0, HEAD)}.weight": f"{base.path_of(0, EMBEDDING)}.weight"} if base.tied else {}
        self._prefix, self._prefixes = base.prefix, base.name_prefixes
        self._headers: dict[str, dict[str, TensorInfo]] = {}

    def repeats(self, file: FileIO, brought: TensorInfo, name: str, rows: tuple[int, ...] | None = None) -> bool:
        """Whether the adapter's tensor has nothing but the values of the base's tensor `name`, as its dtype has them.

        `rows`: which ones of the base's it has. False as well where the base has no such tensor, or has it quantized.
        EOFError where the adapter's file ends early.
        """
        found = self._find(self._renamed.get(name, name))
        if found is None or brought.shape[0] != (found[1].shape[0] if rows is None else len(rows)):
            return False
        return next(self.differing(file, brought, name, rows), None) is None

    def differing(
        self, file: FileIO, brought: TensorInfo, name: str, rows: tuple[int, ...] | None = None
    ) -> Iterator[int]:
        """Where the adapter's tensor has other rows than the base's `name`, or rows that the base lacks, ascending; all
        of them where the base has no such tensor, or has it quantized. As in `repeats`."""
        found = self._find(self._renamed.get(name, name))
        if found is None or brought.shape[1:] != found[1].shape[1:]:
            yield from range(brought.shape[0])
            return
        path, own = found
        with FileIO(path) as base_file:
            for part, first in _parts(brought.shape[0], rows):
                differs = _differs(file, brought, part, base_file, own, first)
                yield from (part.start + np.flatnonzero(differs)).tolist()

    def _find(self, name: str) -> tuple[Path, TensorInfo] | None:
        """Its file, and where it is in there, whatever the files' names begin with."""
        rest = name.removeprefix(self._prefix)
        others = (start + rest for start in self._prefixes if rest != name)
        return next(filter(None, map(self._find_stored, (name, *others))), None)

    def _find_stored(self, name: str) -> tuple[Path, TensorInfo] | None:
        with suppress(OSError, EOFError, ValueError, LookupError, TypeError, AttributeError):
            index = self._folder / "model.safetensors.index.json"
            shards = json.loads(index.read_bytes())["weight_map"] if index.is_file() else {name: "model.safetensors"}
            shard = Path(shards[name]).name
            if shard not in self._headers:
                self._headers[shard] = _read_header(self._folder / shard)
            return self._folder / shard, self._headers[shard][name]
        return None


def _read_header(path: Path) -> dict[str, TensorInfo]:
    with FileIO(path) as file:
        length = int.from_bytes(read_bytes(file, 8), "little")
        if length > os.fstat(file.fileno()).st_size:
            raise ValueError("this is not a safetensors file")
        entries: dict[str, Any] = json.loads(read_bytes(file, length))
    return {
        name: TensorInfo(
            name, entry["dtype"], tuple(entry["shape"]), *(8 + length + at for at in entry["data_offsets"])
        )
        for name, entry in entries.items()
        if entry.get("dtype") in DTYPES
    }


def _parts(count: int, rows: tuple[int, ...] | None) -> Iterator[tuple[slice, int]]:
    """Some of `count` rows, and the first of the same ones of the base."""
    if rows is not None:
        yield from ((slice(at, at + 1), row) for at, row in enumerate(rows))
        return
    for first in range(0, count, CHUNK_ROWS):
        yield slice(first, min(first + CHUNK_ROWS, count)), first


def _differs(
    file: FileIO, brought: TensorInfo, part: slice, base_file: FileIO, own: TensorInfo, first: int
) -> NDArray[np.bool_]:
    """Of each row of the part; what the base lacks differs."""
    common = max(0, min(own.shape[0] - first, part.stop - part.start))
    differs = np.ones(part.stop - part.start, np.bool_)
    if common:
        own_rows = convert(_read_rows(base_file, own, slice(first, first + common)), own.dtype, brought.dtype)
        found = _read_rows(file, brought, slice(part.start, part.start + common))
        differs[:common] = (own_rows != found).reshape(common, -1).any(1)
    return differs


def _read_rows(file: FileIO, tensor: TensorInfo, rows: slice) -> Bits:
    width = (tensor.end - tensor.start) // tensor.shape[0]
    start, end = (tensor.start + row * width for row in (rows.start, rows.stop))
    return read_bits(file, replace(tensor, shape=(rows.stop - rows.start, *tensor.shape[1:]), start=start, end=end))
