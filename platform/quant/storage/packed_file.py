"""A file of packed linears by name: written as they are finished, read straight to where the kernels expect them.

    arrays, each from a cache line on | index, JSON | size of the index, 8 bytes | SHA-256 of the index | MAGIC

The index says of every array where it is, its dtype, shape and CRC-32. What was cut off, or changed by a broken disk,
is found before it is used; the file is no defence against someone who may write to its folder.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from io import FileIO
from pathlib import Path
from typing import Any, Final

import torch

from ..linears.packed import Land, PackedLinear

MAGIC: Final = b"loraplex packed\n"
CACHE_LINE: Final = 64
READERS: Final = 4
"""Threads that read. Most of the time the system looks for memory, which it does for several at once."""
PART: Final = 8 << 20
"""Bytes that one of them reads at a time."""
TRAILER: Final = 8 + hashlib.sha256().digest_size + len(MAGIC)


class BrokenPackedFile(Exception):
    """It is not what was written, and why."""


class PackedWriter:
    """`add` linears, then `finish`: without it the file is broken."""

    def __init__(self, file: FileIO) -> None:
        """`file`: empty, open for writing."""
        self._file = file
        self._size = 0
        self._index: dict[str, Any] = {}

    def add(self, name: str, packed: PackedLinear) -> None:
        """OSError where the disk does not take it."""
        self._index[name] = self._entry(packed)

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._size

    def finish(self) -> None:
        index = json.dumps(self._index).encode()
        self._write(memoryview(index + len(index).to_bytes(8, "little") + hashlib.sha256(index).digest() + MAGIC))

    def _entry(self, packed: PackedLinear) -> dict[str, Any]:
        inner = [self._entry(one) for one in packed.inner]
        arrays = {name: self._written(array) for name, array in packed.arrays.items()}
        return asdict(replace(packed, arrays={}, inner=())) | {"arrays": arrays, "inner": inner}

    def _written(self, array: torch.Tensor) -> dict[str, Any]:
        assert array.is_contiguous()
        self._write(memoryview(bytes(-self._size % CACHE_LINE)))
        begin, data = self._size, array.cpu().view(-1).view(torch.uint8).numpy().data
        self._write(data)
        dtype = str(array.dtype).removeprefix("torch.")
        return {"dtype": dtype, "shape": list(array.shape), "begin": begin, "crc": zlib.crc32(data)}

    def _write(self, data: memoryview) -> None:
        """All of it: one call writes at most 2 GB."""
        self._size += len(data)
        while data:
            data = data[self._file.write(data) :]


class PackedReader:
    """The linears of a finished file. Raises BrokenPackedFile here and in `linear`."""

    def __init__(self, path: Path, land: Land) -> None:
        """FileNotFoundError when there is none."""
        self._file, self._land = FileIO(path), land
        self._readers = ThreadPoolExecutor(READERS, "packed-weights")
        try:
            self._index = self._read_index(path.stat().st_size)
        except BaseException:
            self.close()
            raise

    def linear(self, name: str) -> PackedLinear | None:
        """None for one that was not added."""
        return self._packed(name, self._index[name]) if name in self._index else None

    def close(self) -> None:
        self._readers.shutdown(cancel_futures=True)
        self._file.close()

    def _packed(self, name: str, entry: Mapping[str, Any]) -> PackedLinear:
        arrays = {kind: self._array(f"{kind} of {name}", array) for kind, array in entry["arrays"].items()}
        inner = tuple(self._packed(name, one) for one in entry["inner"])
        out_features = tuple(entry["out_features"])
        return PackedLinear(entry["method"], entry["in_features"], out_features, entry["facts"], arrays, inner)

    def _array(self, what: str, entry: Mapping[str, Any]) -> torch.Tensor:
        begin, checksum = entry["begin"], 0

        def fill(room: memoryview) -> None:
            nonlocal begin, checksum
            for part in self._read(room, begin, what):
                checksum = zlib.crc32(part, checksum)
            begin += len(room)

        array = self._land(getattr(torch, entry["dtype"]), entry["shape"], fill)
        if checksum != entry["crc"]:
            raise BrokenPackedFile(f"the checksum of {what} is another")
        return array

    def _read(self, room: memoryview, begin: int, what: str) -> Iterator[memoryview]:
        """Fills `room` from the byte `begin` on, and yields its parts in their order as they are there."""
        parts = [room[at : at + PART] for at in range(0, len(room), PART)]
        begins = range(begin, begin + len(room), PART)
        for part, complete in zip(parts, self._readers.map(self._read_part, parts, begins), strict=True):
            if not complete:
                raise BrokenPackedFile(f"it ends within {what}")
            yield part

    def _read_part(self, part: memoryview, begin: int) -> bool:
        """False where the file ends before it."""
        while part:
            count = os.preadv(self._file.fileno(), [part], begin)
            if not count:
                return False
            part, begin = part[count:], begin + count
        return True

    def _read_index(self, size: int) -> dict[str, Any]:
        if size < TRAILER:
            raise BrokenPackedFile("it is cut off")
        self._file.seek(size - TRAILER)
        trailer = self._file.read(TRAILER)
        length = int.from_bytes(trailer[:8], "little")
        if not trailer.endswith(MAGIC) or length > size - TRAILER:
            raise BrokenPackedFile("it is cut off")
        self._file.seek(size - TRAILER - length)
        content = self._file.read(length)
        if hashlib.sha256(content).digest() != trailer[8 : -len(MAGIC)]:
            raise BrokenPackedFile("the checksum of its index is another")
        index: dict[str, Any] = json.loads(content)
        return index
