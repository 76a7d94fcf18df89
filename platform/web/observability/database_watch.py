"""DatabaseWatch: reads the desired state anew on a thread of its own, and says what is wrong with the database.

No other work of the server holds this thread up, so what it says is true of the database and of nothing else.
"""

import logging
import shutil
import threading
import time
from pathlib import Path
from typing import Final

from loraplex.registry.database.migrate import is_current
from loraplex.registry.files.full_disk import is_full_disk
from loraplex.registry.snapshot import Snapshots

from ..http.database_errors import fault_of, is_away, log_failure

POLL_SECONDS: Final = 0.5
SCHEMA_SECONDS: Final = 5.0
LATE_SECONDS: Final = 2.0
"""A database that has not answered for longer is told of; who probes hears of it within 3 seconds."""
STALE_SECONDS: Final = 10.0
LEAST_FREE: Final = 1 << 20
"""Bytes. SQLite cannot write with less."""
END_SECONDS: Final = 2.0
DISK_IS_FULL: Final = "the disk of the data folder is full: nothing can be changed, and usage is kept in memory"

logger = logging.getLogger(__name__)


class DatabaseWatch:
    def __init__(self, snapshots: Snapshots, url: str, folder: Path) -> None:
        """`folder`: on the disk that is to have room."""
        self._snapshots, self._url, self._folder = snapshots, url, folder
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self.warning: str | None = None
        """What harms nobody who is served, in words."""
        self._fault: str | None = None
        self._asked_at: float | None = None
        self._schema_at = float("-inf")

    def start(self) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="database-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """A look at a database that does not answer is not waited for."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(END_SECONDS)

    def obstacle(self) -> str | None:
        """What is wrong with the database, in words; None while it answers."""
        asked_at, age = self._asked_at, self._snapshots.age
        if asked_at is not None and (waited := time.monotonic() - asked_at) > LATE_SECONDS:
            return f"the database has not answered for {waited:.0f} s"
        if self._fault is None and age > STALE_SECONDS:
            return f"data on keys and adapters is {age:.0f} s old"
        return self._fault

    def _run(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            self._look()

    def _look(self) -> None:
        self._asked_at = time.monotonic()
        try:
            full = shutil.disk_usage(self._folder).free < LEAST_FREE
            self.warning = DISK_IS_FULL if full else None
            self._snapshots.refresh()
            self._look_at_schema()
        except Exception as error:
            if self._fault is None:
                log_failure(logger, "the registry cannot be read; serving continues from the last known state", error)
            known = is_away(error) or is_full_disk(error)
            self._fault = fault_of(error) if known else "the registry cannot be read; the server's log says why"
        self._asked_at = None

    def _look_at_schema(self) -> None:
        """Rarely: it opens a connection of its own."""
        now = time.monotonic()
        if self._fault is None and now - self._schema_at < SCHEMA_SECONDS:
            return
        self._schema_at = now
        current = is_current(self._url)
        self._fault = None if current else "the database is not migrated to the newest schema"
