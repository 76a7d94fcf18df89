"""Which of the processes that write usage are alive: on this machine by a lock each holds, elsewhere by their beats."""

import fcntl
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from .tables import UsageWriter

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
    path = _path(folder, writer.id)
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return now - writer.beat_at > SILENCE
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    path.unlink(missing_ok=True)
    return True


def _path(folder: Path, writer: str) -> Path:
    return folder / f"{writer}.lock"
