"""Journal: what the lines of one batch have come to, each once, on the disk before anybody is told.

One record a line of text, only ever appended. A process that dies in the middle of one leaves a part of it, which the
next one cuts off. The lock is the process's: nobody else runs the batch while it lives.
"""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from ..files.artifacts import sync_folder
from ..files.full_disk import storage_full_errors


class JournalBusy(Exception):
    """Another process runs this batch."""


class Used(msgspec.Struct, frozen=True):
    """What a line's request has used, and the account and hour that it is booked to."""

    adapter_digest: str
    adapter_name: str
    day: str
    hour: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    failed: bool


class Record(msgspec.Struct, frozen=True):
    """`line`: its number in the input file, from 1. `used` None: it was refused before it counted as a request.
    `result`: the JSON object that the output or error file gets for it."""

    line: int
    succeeded: bool
    used: Used | None
    result: msgspec.Raw


_decoder = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """As append() takes it. `result` must have no newline."""
    return msgspec.json.encode(record) + b"\n"


class Journal:
    """Opened by one process at a time; raises JournalBusy. Its methods block, one at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise JournalBusy from None
        self._descriptor = descriptor
        sync_folder(path.parent)
        self.size = 0
        """Bytes of whole records."""

    def recover(self) -> set[int]:
        """Numbers of the lines that have a record. What follows the last whole record is cut off."""
        self.size = os.fstat(self._descriptor).st_size
        ends = {record.line: end for record, end in self._read(0)}
        whole = max(ends.values(), default=0)
        if whole < self.size:
            os.ftruncate(self._descriptor, whole)
            os.fsync(self._descriptor)
        self.size = whole
        return set(ends)

    def append(self, records: bytes) -> None:
        """On the disk when this returns. Raises StorageFull; the journal must then be opened anew."""
        view = memoryview(records)
        with storage_full_errors():
            while view:
                view = view[os.write(self._descriptor, view) :]
            os.fdatasync(self._descriptor)
        self.size += len(records)

    def records(self, start: int = 0) -> Iterator[Record]:
        """Those that were appended behind the first `start` bytes, up to now."""
        return (record for record, _ in self._read(start))

    def _read(self, start: int) -> Iterator[tuple[Record, int]]:
        """Each with the place where it ends."""
        end = self.size
        with self._path.open("rb") as file:
            file.seek(start)
            for text in file:
                start += len(text)
                if start > end or not text.endswith(b"\n"):
                    return
                try:
                    record = _decoder.decode(text)
                except msgspec.DecodeError:
                    return  # a disk that lost its power may leave bytes that nobody wrote
                yield record, start

    def close(self) -> None:
        os.close(self._descriptor)

    def remove(self) -> None:
        """The batch has ended: its files have all that was here."""
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
