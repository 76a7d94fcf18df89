"""What a database that is away means to who asks: 503 and when to come again, and not a fault of ours."""

import logging
import sqlite3
from typing import Any, Final

from fastapi import Request
from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.responses import Response

from .errors import PageOf, answer_of, overloaded

SQLITE_AWAY: Final = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN}
)
POSTGRESQL_AWAY: Final = ("08", "53", "57P", "57014")
"""How SQLSTATE begins: the connection, its resources, an operator who ends it, and a statement that took too long."""
RETRY_AFTER: Final = 5

logger = logging.getLogger(__name__)


def is_away(error: Exception) -> bool:
    """Whether the same request may succeed later. False for a statement that is wrong."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, PoolTimeoutError)
    cause = error.orig
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF in SQLITE_AWAY
    return (
        error.connection_invalidated or isinstance(error, InterfaceError) or _state(cause).startswith(POSTGRESQL_AWAY)
    )


def log_failure(logger: logging.Logger, what: str, error: Exception) -> None:
    """Of work in the background: a line where the database is away, which is no fault of ours, else with the trace."""
    if is_away(error):
        logger.error("%s: %s", what, cause_of(error))
    else:
        logger.error(what, exc_info=error)


def cause_of(error: Exception) -> object:
    """What the driver says, without the statement."""
    return getattr(error, "orig", None) or error


def database_handlers(page_of: PageOf | None) -> dict[Any, Any]:
    """For the app. What is no matter of time is raised again."""

    async def answer(request: Request, error: Exception) -> Response:
        if not is_away(error):
            raise error
        logger.warning("the database is away: %s", cause_of(error))
        refusal = overloaded("The database is away. Try again in a moment.", RETRY_AFTER)
        return answer_of(refusal, request.scope, page_of)

    return {DBAPIError: answer, PoolTimeoutError: answer}


def _state(cause: BaseException | None) -> str:
    """SQLSTATE, as pg8000 gives it."""
    told = cause.args[0] if cause is not None and cause.args else None
    return str(told.get("C", "")) if isinstance(told, dict) else ""
