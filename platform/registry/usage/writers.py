"""Which of the processes that write usage are alive: on this machine by a lock each holds, elsewhere by their beats."""

import fcntl
import os
import time
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from ..database.tables import UsageWriter

SILENCE: Final = timedelta(seconds=60)
"""After which a process of another machine is taken for gone."""


class WriterLock:
    """Held as long as the process lives, however it ends."""

    def __init__(self, folder: Path, writer: str) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = _path(folder, writer)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def release(self, remove: bool) -> None:
        """`remove`: nothing of this writer is left to settle."""
        if remove:
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def is_gone(folder: Path, writer: UsageWriter, now: datetime) -> bool:
    """Whether nobody writes under this name any more; its lock goes with it."""
    path = _path(folder, writer.id)
    try:
        if _held(path):
            return False
    except FileNotFoundError:
        return now - writer.beat_at > SILENCE
    path.unlink(missing_ok=True)
    return True


def sweep_locks(folder: Path, known: Collection[str]) -> None:
    """Remove what processes left that died before they had written anything."""
    oldest = time.time() - SILENCE.total_seconds()
    for path in folder.glob("*.lock"):
        with suppress(FileNotFoundError):
            if path.stem not in known and path.stat().st_mtime < oldest and not _held(path):
                path.unlink()


def _held(path: Path) -> bool:
    """Raises FileNotFoundError."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _path(folder: Path, writer: str) -> Path:
    return folder / f"{writer}.lock"
