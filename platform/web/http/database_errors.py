"""What a database that is away means to who asks: 503 and when to come again, and not a fault of ours."""

import logging
import sqlite3
from typing import Any, Final

from fastapi import Request
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.responses import Response

from loraplex.registry.files.full_disk import is_full_disk

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
    state = getattr(cause, "sqlstate", None)
    if state is None:  # nothing that the server said
        return error.connection_invalidated or isinstance(error, OperationalError)
    return error.connection_invalidated or state.startswith(POSTGRESQL_AWAY)


def log_failure(logger: logging.Logger, what: str, error: Exception) -> None:
    """Of work in the background: one line where the database is unavailable, else with the trace."""
    if is_away(error):
        logger.error("%s: %s", what, cause_of(error))
    else:
        logger.error(what, exc_info=error)


def cause_of(error: Exception) -> object:
    """What the driver says, without the statement."""
    return getattr(error, "orig", None) or error


def fault_of(error: Exception) -> str:
    """In words, of what `is_away`."""
    if is_full_disk(error):
        return "the database's disk is full, so nothing can be changed until space is freed"
    return "the database is unavailable"


def database_handlers(page_of: PageOf) -> dict[Any, Any]:
    """For the app. What is no matter of time is raised again."""

    async def answer(request: Request, error: Exception) -> Response:
        if not is_away(error):
            raise error
        fault = fault_of(error)
        logger.warning("%s: %s", fault, cause_of(error))
        refusal = overloaded(f"{fault[0].upper()}{fault[1:]}. Try again in a moment.", RETRY_AFTER)
        return answer_of(refusal, request.scope, page_of)

    return {DBAPIError: answer, PoolTimeoutError: answer}
