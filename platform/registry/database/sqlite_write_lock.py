"""Writers of one SQLite file take turns."""

import fcntl
import os
import threading
from pathlib import Path


class WriteLock:
    """A lock over threads and processes, as a context manager.

    SQLite lets one writer in and makes the others poll for it, so that an unlucky one is told `database is locked`;
    here they queue. A process that dies gives its turn back.
    """

    def __init__(self, path: Path) -> None:
        self._threads = threading.Lock()
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb")

    def __enter__(self) -> None:
        """ValueError once it is closed."""
        self._threads.acquire()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except BaseException:
            self._threads.release()
            raise

    def __exit__(self, *_error: object) -> None:
        try:
            if not self._file.closed:  # closing gave the turn back
                fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def close(self) -> None:
        self._file.close()
