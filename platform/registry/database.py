"""One database: SQLite in a file by default, PostgreSQL by URL. Sessions for reading and for writing."""

import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Dialect, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from .quiet_errors import hide_values
from .turn import WriteTurn
from .url_options import check_channel_binding, driver_arguments

AWAY: Final = (DBAPIError, PoolTimeoutError, OSError)
"""What a session raises while the database is away or its disk is full. PostgreSQL's driver has no finer classes."""
SUPPORTED = "sqlite:///path/to/file or postgresql://user:password@host/name"
_BEGIN = "loraplex_begin"
_BUSY_SECONDS = 5


def parse_url(url: str) -> URL:
    """The URL with our driver filled in; raises ValueError for a database that is not supported."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ValueError(f"database_url is not a database's address. Use {SUPPORTED}.") from None
    if parsed.drivername in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+pg8000")
    if parsed.drivername in ("postgresql+pg8000", "sqlite"):
        return parsed
    raise ValueError(f"database_url: '{parsed.drivername}' is not supported. Use {SUPPORTED}.")


def open_engine(url: str, foreign_keys: bool = True) -> Engine:
    """An engine with our connection settings, whose errors show no values: they are logged.

    `foreign_keys=False` is for migrations that rebuild tables in SQLite.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        return _open_postgresql(parsed)
    if not parsed.database or parsed.database == ":memory:":
        raise ValueError(f"A SQLite database needs a file, so that every thread sees the same one. Use {SUPPORTED}.")
    Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(parsed, hide_parameters=True, pool_size=8, max_overflow=24)
    _configure_sqlite(engine, foreign_keys)
    return engine


def _open_postgresql(url: URL) -> Engine:
    arguments = driver_arguments(url.query)
    try:
        engine = create_engine(
            url.set(query={}),
            connect_args=arguments,
            hide_parameters=True,
            pool_size=8,
            max_overflow=24,
            pool_pre_ping=True,
        )
    except ModuleNotFoundError as error:
        raise ValueError(
            f"PostgreSQL needs the Python package {error.name}: "
            "pip install --editable '.[postgres]' in the folder of loraplex"
        ) from None
    event.listen(engine, "handle_error", hide_values)
    event.listen(engine, "do_connect", _connect)
    if url.query.get("channel_binding") == "require":
        event.listen(engine, "connect", lambda connection, _record: check_channel_binding(connection))
    return engine


def _connect(dialect: Dialect, _record: object, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
    """A server that goes away in the middle of the greeting is away like any other: the driver lets the system's own
    error through."""
    try:
        return dialect.connect(*arguments, **named)
    except (ConnectionError, TimeoutError) as error:
        raise dialect.loaded_dbapi.InterfaceError(f"the connection broke: {error}") from error


def _configure_sqlite(engine: Engine, foreign_keys: bool) -> None:
    @event.listens_for(engine, "connect")
    def set_pragmas(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}")
        _use_write_ahead_log(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON" if foreign_keys else "PRAGMA foreign_keys = OFF")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))


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
        self._writer = self.engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
        self._turn = WriteTurn(Path(f"{self.engine.url.database}-turn")) if self.is_sqlite else None

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that sees one state of the database throughout."""
        with Session(self.engine) as session:
            if not self.is_sqlite:
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session in a write transaction: committed when the block ends, rolled back when it raises."""
        with self._turn or nullcontext(), Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        self.engine.dispose()
        if self._turn:
            self._turn.close()
