"""storage_full_errors: what a disk says when it is full, as a refusal."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ..errors import StorageFull

DISK_FULL: Final = "53100"
"""SQLSTATE of PostgreSQL."""


@contextmanager
def storage_full_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full_disk(error):
            raise StorageFull("The server's disk is full. Free up disk space, or remove adapters.") from error
        raise


def is_full_disk(error: BaseException) -> bool:
    """Of a file or of a database: there is no room to write, while reading may go on."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    cause = getattr(error, "orig", None)  # as SQLAlchemy keeps a driver's error, which the preflight must not import
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
    return getattr(cause, "sqlstate", None) == DISK_FULL
