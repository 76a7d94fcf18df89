"""PostgreSQL through pg8000, for SQLAlchemy: a connection that breaks, or over which nothing comes, is a lost one.

The driver lets the system's own errors through where it waits for an answer, which would be faults of ours, and waits
for ever unless it is told how long.
"""

from contextlib import suppress
from ssl import SSLError
from typing import Any, Final

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.pg8000 import PGDialect_pg8000
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import InterfaceError

from .quiet_errors import hide_values
from .url_options import check_channel_binding, driver_arguments

SILENCE_SECONDS: Final = 10.0
"""How long an answer may take: all that waits for one ends in time when the server is told to stop. The slowest
statement of ours is far quicker."""
STATEMENT_SHARE: Final = 0.9
"""Of that, after which the server itself ends a statement: the connection stays then, and nothing runs on unheard."""
BEGIN_READ: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
BEGIN_WRITE: Final = "SET LOCAL idle_in_transaction_session_timeout = '60s'"
"""A writer whose machine vanishes would hold its locks until the system notices, which takes hours."""
registry.register("postgresql.loraplex", __name__, "Dialect")


def open_postgresql(url: URL, patient: bool) -> Engine:
    """patient: for statements that may take long."""
    arguments = driver_arguments(url.query) | {"timeout": None if patient else SILENCE_SECONDS}
    try:
        engine = create_engine(
            url.set(drivername="postgresql+loraplex", query={}),
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
    event.listen(engine, "handle_error", tell_lost)
    if url.query.get("channel_binding") == "require":
        event.listen(engine, "connect", lambda connection, _record: check_channel_binding(connection))
    return engine


class Dialect(PGDialect_pg8000):
    supports_statement_cache = True

    def connect(self, *arguments: Any, **named: Any) -> DBAPIConnection:
        """Raises the driver's InterfaceError, without the driver's settings, where nobody answers."""
        try:
            connection = super().connect(*arguments, **named)
            if named["timeout"] is not None and "statement_timeout" not in str(named.get("startup_params")):
                limit_statements(connection)
            return connection
        except SSLError:
            raise
        except (OSError, self.loaded_dbapi.InterfaceError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError):
                raise
            where = f"{named.get('host', 'localhost')}:{named.get('port', 5432)}"
            raise self.loaded_dbapi.InterfaceError(f"cannot connect to {where}: {in_words(cause)}") from error

    def do_ping(self, dbapi_connection: DBAPIConnection) -> bool:
        try:
            return super().do_ping(dbapi_connection)
        except OSError:
            return False

    def do_close(self, dbapi_connection: DBAPIConnection) -> None:
        """One that is lost takes no farewell."""
        with suppress(OSError, self.loaded_dbapi.InterfaceError):
            dbapi_connection.close()


def limit_statements(connection: DBAPIConnection) -> None:
    cursor = connection.cursor()
    cursor.execute(f"SET statement_timeout = {SILENCE_SECONDS * STATEMENT_SHARE * 1000:.0f}")
    cursor.close()
    connection.commit()


def tell_lost(context: ExceptionContext) -> InterfaceError | None:
    """For SQLAlchemy's event `handle_error`. All connections that are older are given up with this one."""
    cause = context.original_exception
    if not isinstance(cause, OSError):
        return None
    # SQLAlchemy takes a TimeoutError for that of an asyncio task, which tells nothing about other connections.
    context.is_disconnect = context.invalidate_pool_on_disconnect = True
    lost = context.dialect.loaded_dbapi.InterfaceError(f"the connection broke: {in_words(cause)}")
    return InterfaceError(context.statement, None, lost, hide_parameters=True, connection_invalidated=True)


def in_words(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer for {SILENCE_SECONDS:.0f} seconds"
    return error.strerror or str(error)
