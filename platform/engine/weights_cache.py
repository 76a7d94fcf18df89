"""WeightsCache: what was made of checkpoints as they were loaded, kept for the next start.

A folder of entries, each a file or a folder that appears complete or not at all. One process writes at a time; what it
left unfinished begins with a dot and is removed by the next one. All of it can be deleted at any time.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LOCK: Final = "lock"
UNFINISHED: Final = "."
SPARE_BYTES: Final = 1 << 30
"""Of the disk, that packed weights leave free."""


class WeightsCache:
    def __init__(self, folder: Path, limit: int) -> None:
        """`limit`: bytes of all entries. ValueError for a folder that cannot be made or written."""
        self._folder, self._limit = folder, limit
        self._used: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._open_lock()
        except OSError as error:
            raise ValueError(
                f"the weights cache {folder} cannot be written: {error.strerror}. "
                "Make it writable, or keep no weights with weights_cache_bytes 0"
            ) from error

    def path(self, name: str) -> Path:
        """Where the entry is, or is to appear."""
        return self._folder / name

    def use(self, name: str) -> Path | None:
        """The entry, the last used one from now on, and not removed for another one of this object's; None when there
        is none."""
        path = self.path(name)
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        self._used.add(name)
        return path

    @contextmanager
    def turn(self, wait: bool) -> Iterator[bool]:
        """Whether this process alone may write entries until the block ends: always, if it may wait for others."""
        with os.fdopen(self._open_lock()) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            for path in self._folder.glob(f"{UNFINISHED}*"):
                _remove(path)
            yield True

    def unfinished(self, name: str) -> Path:
        """Where whoever has its turn writes the entry before it is renamed to `path`."""
        return self.path(f"{UNFINISHED}{name}")

    def room(self) -> int:
        """Bytes that another entry may have beside those in use, as the limit and the disk are now."""
        return max(0, min(self._limit - self._used_bytes(), shutil.disk_usage(self._folder).free - SPARE_BYTES))

    def trim(self) -> None:
        """Remove what was unused the longest until the limit is kept, but nothing in use. For whoever has its turn."""
        entries = [path for path in self._folder.iterdir() if path.name not in {LOCK, *self._used}]
        entries.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        total = self._used_bytes()
        for path in entries:
            total += _size(path)
            if total > self._limit:
                _remove(path)

    def _used_bytes(self) -> int:
        return sum(_size(self.path(name)) for name in self._used)

    def _open_lock(self) -> int:
        return os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
