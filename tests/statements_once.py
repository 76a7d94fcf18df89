"""Tests open a database each, with the same tables. SQLAlchemy writes each statement's SQL once in a process."""

from functools import partial
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

from loraplex.registry.database import database

MOST_STATEMENTS = 2000


def write_statements_once(patch: pytest.MonkeyPatch) -> None:
    """Of SQLite: its library is the same for all databases of a process, and so is its dialect."""
    shared: Any = LRUCache(MOST_STATEMENTS)
    patch.setattr(database, "create_engine", partial(create_engine, execution_options={"compiled_cache": shared}))
    patch.setattr(SQLiteDialect_pysqlite, "__eq__", lambda one, other: type(one) is type(other))
    patch.setattr(SQLiteDialect_pysqlite, "__hash__", lambda dialect: hash(type(dialect)))
