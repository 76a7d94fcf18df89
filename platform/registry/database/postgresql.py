"""PostgreSQL through psycopg, for SQLAlchemy: a connection over which nothing comes counts as lost.

libpq reads the URL's options and finds out about broken connections, but it waits for an answer without end.
"""

import os
from functools import partial
from ssl import get_default_verify_paths
from typing import Any, Final

from psycopg import Connection, OperationalError
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL

from .quiet_errors import hide_values
from .url_options import checked_options

SILENCE_SECONDS: Final = 10
"""How long an answer may take: all that waits for one ends in time when the server is told to stop. The slowest
statement of ours is far quicker."""
STATEMENT_SHARE: Final = 0.9
"""Of that, after which the server itself ends a statement: the connection stays then, and nothing runs on unheard."""
BEGIN_READ: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
BEGIN_WRITE: Final = "SET LOCAL idle_in_transaction_session_timeout = '60s'"
"""A writer whose machine vanishes would hold its locks until the system notices, which takes hours."""
# psycopg's own OpenSSL looks for the machine's certificate authorities in a folder of its own.
os.environ.setdefault("SSL_CERT_DIR", get_default_verify_paths().openssl_capath)


def open_postgresql(url: URL, patient: bool) -> Engine:
    """patient: for statements that may take long."""
    url = url.set(query=checked_options(url.query))
    engine = create_engine(url, hide_parameters=True, pool_size=8, max_overflow=24, pool_pre_ping=True)
    event.listen(engine, "do_connect", partial(_connect, Connection if patient else ImpatientConnection))
    event.listen(engine, "handle_error", hide_values)
    return engine


class ImpatientConnection(Connection[Any]):
    """Closed, with an OperationalError, when an answer takes longer than SILENCE_SECONDS."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        try:
            return super().wait(gen, interval, SILENCE_SECONDS if timeout is None else timeout)
        except OperationalError as error:
            if error.sqlstate is None:  # not said by the server
                self.pgconn.finish()
            raise


def _connect(
    kind: type[Connection[Any]], _dialect: object, _record: object, given: list[Any], named: dict[str, Any]
) -> Connection[Any]:
    # From a database without an encoding (SQL_ASCII) psycopg reads bytes, unless told which one to use.
    options = {"client_encoding": "utf8"} | named
    # A pooler may give each transaction another session, which knows no statement that was prepared before.
    connection = kind.connect(*given, connect_timeout=SILENCE_SECONDS, prepare_threshold=None, **options)
    if kind is ImpatientConnection and "statement_timeout" not in named.get("options", ""):
        limit_statements(connection)
    return connection


def limit_statements(connection: Connection[Any]) -> None:
    """Told once connected, since poolers refuse it as an option of the login."""
    connection.execute(f"SET statement_timeout = {SILENCE_SECONDS * STATEMENT_SHARE * 1000:.0f}")
    connection.commit()
