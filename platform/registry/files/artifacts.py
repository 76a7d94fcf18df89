"""The artifact store: uploaded files by the SHA-256 of their bytes, and adapters ready for the engine by digest.

    <root>/incoming/           files being received, folders being made or thrown away
    <root>/blobs/<sha256>      one received file
    <root>/adapters/<digest>/  adapter_config.json and adapter_model.safetensors, hard links to blobs
    <root>/files/<id>          one file of a tenant
    <root>/batches/<id>        the journal of a batch that has not ended

A blob, folder or file appears by one rename after its bytes are on the disk, so whatever is visible is complete.
"""

import hashlib
import os
import re
import shutil
import tempfile
from io import BufferedReader
from pathlib import Path
from typing import IO

from ..errors import StorageFull, UploadEmpty, UploadMismatch, UploadMissing, UploadTooLarge
from .full_disk import storage_full_errors
from .incoming import Blob, IncomingFile

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_HEX = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1 << 20


class ArtifactStore:
    """All paths are made here, from checked identifiers. `free_floor`: bytes that must stay free on the disk."""

    def __init__(self, root: Path, free_floor: int = 1 << 30) -> None:
        self.root, self._free_floor = root, free_floor
        self.incoming, self.blobs, self.adapters = root / "incoming", root / "blobs", root / "adapters"
        self.files, self.batches = root / "files", root / "batches"
        for folder in (self.incoming, self.blobs, self.adapters, self.files, self.batches):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def receive(self, size: int, sha256: str, limit: int, owner: str | None = None) -> IncomingFile:
        """Begin a file of declared size and SHA-256; at most `limit` bytes. Nothing is written yet.

        With an `owner`, go on with what an earlier connection of theirs has left of it. Raises UploadEmpty,
        UploadTooLarge, UploadMismatch (the SHA-256 is none), UploadBusy, StorageFull.
        """
        check_sha256(sha256)
        if size < 1:
            raise UploadEmpty("The file is empty. Save the adapter again and upload the new file.")
        if size > limit:
            raise UploadTooLarge(f"The file has {size:,} bytes; this server takes at most {limit:,}.")
        self.check_room(size)
        return IncomingFile(self.incoming, self.take_in, size, sha256, owner)

    def check_room(self, size: int) -> None:
        """Raises StorageFull unless the disk has room for so many bytes more."""
        free = shutil.disk_usage(self.root).free
        if free - size < self._free_floor:
            raise StorageFull(
                f"Not enough disk space for {size:,} bytes: {free:,} are free and {self._free_floor:,} must stay free. "
                "Free up disk space on the server, or remove adapters."
            )

    def take_in(self, file: IO[bytes], path: Path, size: int, sha256: str) -> Blob:
        """Make a checked file of `incoming/` a blob. Closes it. Raises StorageFull."""
        with storage_full_errors():
            os.fchmod(file.fileno(), 0o400)
            os.fsync(file.fileno())
            path.rename(self.blob_path(sha256))
            file.close()
            sync_folder(self.blobs)
        return Blob(sha256, size)

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
        with storage_full_errors():
            staging = self.stage(config, weights)
            sync_folder(staging)
            self.discard(self.folder(digest))
            staging.rename(self.folder(digest))
            sync_folder(self.adapters)

    def stage(self, config: Blob, weights: Blob) -> Path:
        """A new folder of two blobs that are no adapter yet; for `discard`. Raises UploadMissing, StorageFull."""
        with storage_full_errors():
            staging = Path(tempfile.mkdtemp(dir=self.incoming))
            self._link(config, staging / CONFIG_FILE)
            self._link(weights, staging / WEIGHTS_FILE)
            return staging

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
                        f"The server has no file with SHA-256 {blob.sha256}. Upload it, then register again."
                    ) from None


def check_sha256(text: str) -> str:
    """The text itself when it is 64 lower-case hex digits; only then may it become part of a path."""
    if not _HEX.fullmatch(text):
        raise UploadMismatch(f"{text[:80]!a} is not a SHA-256 digest of 64 hex digits.")
    return text


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
