"""IncomingFile: a file on its way into the artifact store, which may be taken up again where a connection broke."""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from ..errors import UploadBusy, UploadMismatch, UploadTooLarge
from .full_disk import storage_full_errors

READ_BYTES: Final = 1 << 20
WRITE_OUT_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Blob:
    """A received file, complete and durable."""

    sha256: str
    size: int


TakeIn = Callable[[IO[bytes], Path, int, str], Blob]
"""(file, path, size, SHA-256) of a complete file -> what the store has made of it."""


class IncomingFile:
    """Call write() for each chunk, then finish() or abort(); leaving `with` aborts.

    With an `owner`, abort() keeps an incomplete file: the next one of this owner, size and SHA-256 goes on with it,
    until the sweep finds that nobody came. The methods block for the time of a disk write and may be called from any
    thread, one at a time.
    """

    def __init__(self, folder: Path, take_in: TakeIn, size: int, sha256: str, owner: str | None = None) -> None:
        """`folder`: of files on their way. Raises UploadBusy while this owner sends the same file elsewhere."""
        self._take_in, self._size, self._sha256 = take_in, size, sha256
        self._keeps = owner is not None
        if owner is None:
            descriptor, path = tempfile.mkstemp(dir=folder)
        else:
            path = str(folder / _partial_name(owner, size, sha256))
            descriptor = _open_alone(path)
        self._file, self._path = os.fdopen(descriptor, "r+b", buffering=0), Path(path)
        self._hash = hashlib.sha256()
        self._received = 0
        self._take_up()
        self._written_out = self._received

    @property
    def received(self) -> int:
        """Bytes so far, those of earlier connections among them."""
        return self._received

    def restart(self) -> None:
        """Forget the bytes of earlier connections."""
        self._file.seek(0)
        self._file.truncate()
        self._hash, self._received, self._written_out = hashlib.sha256(), 0, 0

    def write(self, chunk: bytes | memoryview) -> None:
        """Raises UploadTooLarge at the first byte beyond the declared size, StorageFull when the disk is."""
        if self._received + len(chunk) > self._size:
            raise UploadTooLarge(f"The file is longer than the declared {self._size:,} bytes. Upload it again.")
        with storage_full_errors():
            _write_all(self._file.fileno(), chunk)
        self._hash.update(chunk)
        self._received += len(chunk)
        if self._received - self._written_out >= WRITE_OUT_BYTES:
            self._write_out()

    def finish(self) -> Blob:
        """Check size and SHA-256, make the bytes durable and visible. Raises UploadMismatch, StorageFull."""
        self._check()
        return self._take_in(self._file, self._path, self._size, self._sha256)

    def abort(self) -> None:
        """Forget the bytes, or keep them for the next connection. Does nothing after finish()."""
        if not self._file.closed:
            complete = self._received == self._size
            if complete or not self._keeps or not self._received:
                self._path.unlink()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _write_out(self) -> None:
        """Let the disk begin while more bytes come, so that the sync in the end finds little left to do.

        Linux takes it for a wish to write these pages; they stay in memory, as they are dirty when it is uttered.
        """
        if hasattr(os, "posix_fadvise"):
            start, size = self._written_out, self._received - self._written_out
            os.posix_fadvise(self._file.fileno(), start, size, os.POSIX_FADV_DONTNEED)
        self._written_out = self._received

    def _take_up(self) -> None:
        """Count what earlier connections left."""
        while chunk := self._file.read(READ_BYTES):
            self._hash.update(chunk)
            self._received += len(chunk)

    def _check(self) -> None:
        if self._received != self._size:
            raise UploadMismatch(f"{self._received} of {self._size} declared bytes arrived. Upload the file again.")
        if self._hash.hexdigest() != self._sha256:
            found = self._hash.hexdigest()
            raise UploadMismatch(f"The file has SHA-256 {found}, not the declared {self._sha256}. Upload it again.")


def kept_bytes(folder: Path, owner: str, size: int, sha256: str) -> int:
    """How much of a file broken connections have left."""
    try:
        return (folder / _partial_name(owner, size, sha256)).stat().st_size
    except FileNotFoundError:
        return 0


def _partial_name(owner: str, size: int, sha256: str) -> str:
    """One owner's bytes are never the beginning of another's file."""
    return "partial-" + hashlib.sha256(f"{len(owner)}:{owner}:{size}:{sha256}".encode()).hexdigest()


def _open_alone(path: str) -> int:
    """A locked descriptor of the file that has this name now: it may have become a blob while we waited for it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino == Path(path).stat().st_ino:
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise UploadBusy(
                "Another connection is sending the same file. Wait until it ends, then continue."
            ) from None
        except FileNotFoundError:
            pass
        os.close(descriptor)


def _write_all(descriptor: int, chunk: bytes | memoryview) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]
