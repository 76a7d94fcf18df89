"""The artifact store: uploaded files by the SHA-256 of their bytes, and adapters ready for the engine by digest.

    <root>/incoming/           files being received, folders being made or thrown away
    <root>/blobs/<sha256>      one received file
    <root>/adapters/<digest>/  adapter_config.json and adapter_model.safetensors, hard links to blobs

A blob or folder appears by one rename after its bytes are on the disk, so whatever is visible is complete.
"""

import errno
import hashlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Self

from .errors import StorageFull, UploadEmpty, UploadMismatch, UploadMissing, UploadTooLarge

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_HEX = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Blob:
    """A received file, complete and durable."""

    sha256: str
    size: int


class IncomingFile:
    """One file on its way in. Call write() for each chunk, then finish() or abort(); leaving `with` aborts.

    The methods block for the time of a disk write and may be called from any thread, one at a time.
    """

    def __init__(self, store: "ArtifactStore", size: int, sha256: str) -> None:
        self._store, self._size, self._sha256 = store, size, sha256
        self._hash = hashlib.sha256()
        self._received = 0
        descriptor, path = tempfile.mkstemp(dir=store.incoming)
        self._file, self._path = os.fdopen(descriptor, "wb", buffering=0), Path(path)

    @property
    def received(self) -> int:
        """Bytes so far."""
        return self._received

    def write(self, chunk: bytes) -> None:
        """Raises UploadTooLarge at the first byte beyond the declared size, StorageFull when the disk is."""
        if self._received + len(chunk) > self._size:
            raise UploadTooLarge(f"The file is longer than the declared {self._size:,} bytes. Upload it again.")
        with _full_disk_in_words():
            _write_all(self._file.fileno(), chunk)
        self._hash.update(chunk)
        self._received += len(chunk)

    def finish(self) -> Blob:
        """Check size and SHA-256, make the bytes durable and visible. Raises UploadMismatch, StorageFull."""
        self._check()
        with _full_disk_in_words():
            os.fchmod(self._file.fileno(), 0o400)
            os.fsync(self._file.fileno())
            self._file.close()
            self._path.rename(self._store.blob_path(self._sha256))
            sync_folder(self._store.blobs)
        return Blob(self._sha256, self._size)

    def abort(self) -> None:
        """Forget the bytes. Does nothing after finish()."""
        if not self._file.closed:
            self._file.close()
            self._path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _check(self) -> None:
        if self._received != self._size:
            raise UploadMismatch(f"{self._received} of {self._size} declared bytes arrived. Upload the file again.")
        if self._hash.hexdigest() != self._sha256:
            found = self._hash.hexdigest()
            raise UploadMismatch(f"The bytes have SHA-256 {found}, not the declared {self._sha256}. Upload it again.")


class ArtifactStore:
    """All paths are made here, from checked identifiers. `free_floor`: bytes that must stay free on the disk."""

    def __init__(self, root: Path, free_floor: int = 1 << 30) -> None:
        self.root, self._free_floor = root, free_floor
        self.incoming, self.blobs, self.adapters = root / "incoming", root / "blobs", root / "adapters"
        for folder in (self.incoming, self.blobs, self.adapters):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def receive(self, size: int, sha256: str, limit: int) -> IncomingFile:
        """Begin a file of declared size and SHA-256; at most `limit` bytes. Nothing is written yet.

        Raises UploadEmpty, UploadTooLarge, UploadMismatch (the SHA-256 is none), StorageFull.
        """
        check_sha256(sha256)
        if size < 1:
            raise UploadEmpty("The file is empty. Save the adapter again and upload the file that was written.")
        if size > limit:
            raise UploadTooLarge(f"The file has {size:,} bytes; this server takes at most {limit:,}.")
        free = shutil.disk_usage(self.root).free
        if free - size < self._free_floor:
            raise StorageFull(
                f"No room for {size:,} bytes: {free:,} are free and {self._free_floor:,} must stay free. "
                "Free space on the server's disk, or remove adapters."
            )
        return IncomingFile(self, size, sha256)

    def keep(self, file: BufferedReader) -> Blob:
        """The bytes of an open file as a blob, copied unless they are here already.

        Raises UploadEmpty, StorageFull; UploadMismatch, UploadTooLarge when the file changes while it is read.
        """
        size, sha256 = os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()
        known = self.find(sha256)
        if known is not None and known.size == size:
            return known
        file.seek(0)
        with self.receive(size, sha256, limit=size) as incoming:
            while chunk := file.read(_CHUNK):
                incoming.write(chunk)
            return incoming.finish()

    def find(self, sha256: str) -> Blob | None:
        """The blob if these bytes are already here; it is then safe from sweeping for another grace time."""
        path = self.blob_path(sha256)
        try:
            os.utime(path)
            return Blob(sha256, path.stat().st_size)
        except FileNotFoundError:
            return None

    def blob_path(self, sha256: str) -> Path:
        return self.blobs / check_sha256(sha256)

    def folder(self, digest: str) -> Path:
        """Where the engine finds the adapter with this digest."""
        return self.adapters / check_sha256(digest)

    def publish(self, digest: str, config: Blob, weights: Blob) -> None:
        """Make the adapter folder from two blobs, replacing whatever is there. Raises UploadMissing, StorageFull."""
        with _full_disk_in_words():
            staging = Path(tempfile.mkdtemp(dir=self.incoming))
            self._link(config, staging / CONFIG_FILE)
            self._link(weights, staging / WEIGHTS_FILE)
            sync_folder(staging)
            self.discard(self.folder(digest))
            staging.rename(self.folder(digest))
            sync_folder(self.adapters)

    def problem(self, digest: str, config_size: int, weights_size: int) -> str | None:
        """Why the folder of this digest cannot be served, or None when both files have their size."""
        for name, size in ((CONFIG_FILE, config_size), (WEIGHTS_FILE, weights_size)):
            try:
                found = (self.folder(digest) / name).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return f"{name} is missing from the artifact store"
            if found != size:
                return f"{name} has {found:,} bytes in the artifact store instead of {size:,}"
        return None

    def discard(self, path: Path) -> None:
        """Remove a folder so that it is gone at once, even if this process dies half-way through its files."""
        if path.exists():
            doomed = Path(tempfile.mkdtemp(dir=self.incoming)) / path.name
            path.rename(doomed)
            shutil.rmtree(doomed.parent)

    def _link(self, blob: Blob, target: Path) -> None:
        path = self.blob_path(blob.sha256)
        while True:
            try:
                return os.link(path, target)
            except FileNotFoundError:
                # Also said of a file that is there, when the same upload just took its place.
                if not path.exists():
                    raise UploadMissing(
                        f"No file with SHA-256 {blob.sha256} is here. Upload it, then register again."
                    ) from None


def check_sha256(text: str) -> str:
    """The text itself when it is 64 lower-case hex digits; only then may it become part of a path."""
    if not _HEX.fullmatch(text):
        raise UploadMismatch(f"{text[:80]!a} is no SHA-256: 64 digits from 0-9 and a-f are needed.")
    return text


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]


class _full_disk_in_words:
    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull("The server's disk is full. Free space on it, or remove adapters.") from error
