"""One database: SQLite in a file by default, PostgreSQL by URL. Sessions for reading and for writing."""

import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from .sqlite_write_lock import WriteLock

AWAY: Final = (DBAPIError, PoolTimeoutError, OSError)
"""What a session raises when the database is unavailable or full. PostgreSQL's driver has no finer classes."""
SUPPORTED = "sqlite:///path/to/file or postgresql://user:password@host/name"
BEGIN: Final = "loraplex_begin"
"""Execution option of an engine: the statement with which each of its transactions begins."""
_BUSY_SECONDS = 5


def parse_url(url: str) -> URL:
    """The URL with our driver filled in; raises ValueError for a database that is not supported."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ValueError(f"database_url is not a database URL. Use {SUPPORTED}.") from None
    if parsed.drivername in ("postgresql", "postgres", "postgresql+pg8000", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername == "sqlite":
        return parsed
    raise ValueError(f"database_url: '{parsed.drivername}' is not supported. Use {SUPPORTED}.")


def open_engine(url: str, foreign_keys: bool = True, patient: bool = False) -> Engine:
    """An engine with our connection settings, whose errors show no values: they are logged.

    `foreign_keys=False` is for migrations that rebuild tables in SQLite, `patient` for statements of PostgreSQL that
    may take long: others fail after postgresql.SILENCE_SECONDS.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        try:
            from .postgresql import open_postgresql
        except ModuleNotFoundError as error:
            install = "pip install --editable '.[postgres]' in the folder of loraplex"
            raise ValueError(f"PostgreSQL needs the Python package {error.name}: {install}") from None
        engine = open_postgresql(parsed, patient)
    else:
        engine = _open_sqlite(parsed, foreign_keys)
    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    statement = connection.get_execution_options().get(BEGIN, "BEGIN" if connection.dialect.name == "sqlite" else None)
    if statement is not None:
        connection.exec_driver_sql(statement)


def _open_sqlite(url: URL, foreign_keys: bool) -> Engine:
    if not url.database or url.database == ":memory:":
        raise ValueError(f"A SQLite database needs a file, so that all threads share it. Use {SUPPORTED}.")
    Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, hide_parameters=True, pool_size=8, max_overflow=24)
    _configure_sqlite(engine, foreign_keys)
    return engine


def _configure_sqlite(engine: Engine, foreign_keys: bool) -> None:
    @event.listens_for(engine, "connect")
    def set_pragmas(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}")
        _use_write_ahead_log(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON" if foreign_keys else "PRAGMA foreign_keys = OFF")


def _use_write_ahead_log(connection: Any) -> None:
    """SQLite refuses the switch at once, without its busy timeout, when two connections of a new file try it."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(0.001, 0.02))


class Database:
    """Sessions on one database. Safe to use from many threads, and from many processes at once."""

    def __init__(self, url: str) -> None:
        self.engine = open_engine(url)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        read, write = self._begins()
        self._reader = self.engine.execution_options(**{BEGIN: read})
        self._writer = self.engine.execution_options(**{BEGIN: write})
        self._turn = WriteLock(Path(f"{self.engine.url.database}-turn")) if self.is_sqlite else None

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that sees one state of the database throughout."""
        with Session(self._reader) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session in a write transaction: committed when the block ends, rolled back when it raises."""
        with self._turn or nullcontext(), Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    def _begins(self) -> tuple[str, str]:
        """Of reading and of writing transactions."""
        if self.is_sqlite:
            return "BEGIN", "BEGIN IMMEDIATE"
        from .postgresql import BEGIN_READ, BEGIN_WRITE

        return BEGIN_READ, BEGIN_WRITE

    def close(self) -> None:
        self.engine.dispose()
        if self._turn:
            self._turn.close()
