"""WeightsCache: what was made of checkpoints as they were loaded, kept for the next start.

A folder of entries, each a file or a folder that appears complete or not at all. One process writes at a time; what it
left unfinished begins with a dot and is removed by the next one. All of it can be deleted at any time. The folder may
hold other things: what is not named as an entry is neither counted nor touched.
"""

import fcntl
import hashlib
import logging
import os
import re
import shutil
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

LOCK: Final = "lock"
UNFINISHED: Final = "."
ENTRY: Final = r"(packed|awq)-[0-9a-f]{32}"
SPARE_BYTES: Final = 1 << 30
"""Of the disk, that packed weights leave free."""

logger = logging.getLogger(__name__)


def entry_name(kind: Literal["packed", "awq"], identity: str) -> str:
    """Another one for another identity."""
    return f"{kind}-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"


def kept_entries(folder: Path) -> dict[Path, int]:
    """What is kept there, with its bytes. Changes nothing."""
    paths = [path for path in folder.iterdir() if re.fullmatch(ENTRY, path.name)] if folder.is_dir() else []
    return {path: _size(path) for path in paths}


class WeightsCache:
    def __init__(self, folder: Path, limit: int) -> None:
        """`limit`: bytes of all entries. ValueError for a folder that cannot be made or written."""
        self._folder, self._limit = folder, limit
        self._used: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(self._open_lock())
        except OSError as error:
            raise ValueError(
                f"the weights cache {folder} cannot be written: {error.strerror}. "
                "Make it writable, or keep no weights with weights_cache_bytes 0"
            ) from error

    def path(self, name: str) -> Path:
        """Where the entry is, or is to appear."""
        return self._folder / name

    def use(self, name: str) -> Path | None:
        """The entry, the last used one from now on, and not removed by anyone as long as this object lives; None when
        there is none."""
        path = self.path(name)
        if not self._hold(path):
            return None
        with suppress(OSError):  # another user's may be read all the same
            os.utime(path)
        self._used.add(name)
        return path

    def discard(self, name: str) -> bool:
        """Remove the entry, which is not what it should be; False where there is none. Who has its files open reads on.
        For whoever has its turn."""
        unfinished = self.unfinished(name)
        try:
            self.path(name).rename(unfinished)
        except FileNotFoundError:
            return False
        _delete(unfinished)
        return True

    @contextmanager
    def turn(self, wait: bool) -> Iterator[bool]:
        """Whether this process alone may write entries until the block ends: always, if it may wait for others."""
        with os.fdopen(self._open_lock()) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            for path in self._named(f"{re.escape(UNFINISHED)}{ENTRY}(\\..*)?"):
                _delete(path)
            yield True

    def unfinished(self, name: str) -> Path:
        """Where whoever has its turn writes the entry before it is renamed to `path`; a dot and more may follow."""
        return self.path(f"{UNFINISHED}{name}")

    def allowance(self) -> int:
        """Bytes that the limit leaves to another entry beside those in use."""
        return max(0, self._limit - self._used_bytes())

    def make_room(self, needed: int) -> bool:
        """Whether the disk takes as many bytes more. What was unused the longest is removed for them, unless all of it
        would not do. For whoever has its turn."""
        unused = self._unused()
        if self._free() + sum(entry.size for entry in unused) < needed:
            return False
        while self._free() < needed and unused:
            self._remove(unused.pop(0).path)
        return self._free() >= needed

    def trim(self) -> None:
        """Remove what was unused the longest until the limit is kept, but nothing in use. For whoever has its turn."""
        unused = self._unused()
        total = sum(kept_entries(self._folder).values()) - sum(entry.size for entry in unused)
        for entry in reversed(unused):
            total += entry.size
            if total > self._limit:
                self._remove(entry.path)

    def _hold(self, path: Path) -> bool:
        """Keep it from being removed, also by other processes; False where there is none."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            return os.path.samestat(os.fstat(descriptor), path.stat())  # else it has just been removed
        except OSError:
            return False

    def _unused(self) -> list["_Entry"]:
        """By nobody, the longest unused first."""
        paths = [path for path in self._named(ENTRY) if path.name not in self._used]
        unused = []
        for path in paths:
            with _alone_with(path) as alone:
                if alone:
                    unused.append(_Entry(path.lstat().st_mtime, _size(path), path))
        return sorted(unused)

    def _named(self, pattern: str) -> list[Path]:
        return [path for path in self._folder.iterdir() if re.fullmatch(pattern, path.name)]

    def _used_bytes(self) -> int:
        return sum(_size(self.path(name)) for name in self._used)

    def _free(self) -> int:
        return shutil.disk_usage(self._folder).free - SPARE_BYTES

    def _remove(self, entry: Path) -> None:
        unfinished = self.unfinished(entry.name)
        with _alone_with(entry) as alone:
            if not alone:
                return  # somebody has begun to use it
            try:
                entry.rename(unfinished)  # else what is left of an interrupted removal would count as complete
            except OSError as error:
                logger.warning("%s, which is used no more, cannot be removed: %s", entry, error)
                return
        _delete(unfinished)

    def _open_lock(self) -> int:
        return os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)


@contextmanager
def _alone_with(entry: Path) -> Iterator[bool]:
    """Whether nobody uses the entry; until the block ends, nobody begins to."""
    with ExitStack() as stack:
        try:
            descriptor = os.open(entry, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


class _Entry(NamedTuple):
    used: float
    size: int
    path: Path


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _delete(unfinished: Path) -> None:
    """What cannot be deleted is left to the next turn."""
    if unfinished.is_dir() and not unfinished.is_symlink():
        shutil.rmtree(unfinished, ignore_errors=True)
    else:
        with suppress(OSError):
            unfinished.unlink()
