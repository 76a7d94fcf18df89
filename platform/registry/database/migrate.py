"""Bringing a database to the newest schema, from a checkout or an installed package.

They live in the repository's folder `migrations/`; the link beside this file makes them part of the package. Alembic is
imported where one of them is to be run: words of the command line mostly find the database at the newest.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect

from .database import BEGIN, open_engine, parse_url

if TYPE_CHECKING:
    from alembic.config import Config

FOLDER = Path(__file__).parent.parent / "migrations"
_REVISION: Final = re.compile(r"""^(down_)?revision = ["'](\w+)["']$""", re.MULTILINE)
_LOCK = 0x6C6F7261
_VERSIONS = "alembic_version"
"""Alembic's table: one row with the revision."""


def upgrade(url: str) -> None:
    """Migrate to the head in one transaction; several processes may call it at once. Raises ValueError in words."""
    if is_current(url):  # asked without patience: a server that says nothing is found out
        return
    with _locked(url) as connection:
        if _revision(connection) == head():
            return
        from alembic import command
        from alembic.util import CommandError

        try:
            command.upgrade(_config(connection), "head")
        except CommandError as error:
            raise ValueError(
                f"The database cannot be migrated: {error}. A newer loraplex probably wrote it: "
                "install that version, or restore a backup."
            ) from error


def is_current(url: str) -> bool:
    """Whether the database is at the head, for readiness."""
    return current(url) == head()


def current(url: str) -> str | None:
    """The revision that the database is at; None before the first migration.

    Asked of the table itself: alembic logs two lines each time, and readiness is probed every few seconds.
    """
    engine = open_engine(url)
    try:
        with engine.connect() as connection:
            return _revision(connection)
    finally:
        engine.dispose()


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSIONS):
        return None
    revision: str | None = connection.exec_driver_sql(f"SELECT version_num FROM {_VERSIONS}").scalar()
    return revision


def is_known(revision: str) -> bool:
    """Whether this version of loraplex has the revision."""
    return revision in _revisions()[0]


@cache
def head() -> str:
    """The revision that no other one follows. Read once: readiness asks for it every few seconds."""
    revisions, followed = _revisions()
    heads = revisions - followed
    assert len(heads) == 1, heads
    return heads.pop()


def _revisions() -> tuple[set[str], set[str]]:
    """All, and those that another one follows: from the files' text, which alembic would run to tell."""
    found = [match for file in FOLDER.glob("versions/*.py") for match in _REVISION.finditer(file.read_text("utf-8"))]
    return {match[2] for match in found if not match[1]}, {match[2] for match in found if match[1]}


def drift(url: str) -> list[object]:
    """What autogenerate would still change in a migrated database; empty when migrations and tables agree."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from .tables import Table

    engine = open_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        found = compare_metadata(context, Table.metadata)
    engine.dispose()
    return list(found)


@contextmanager
def _locked(url: str) -> Iterator[Connection]:
    begin = f"SELECT pg_advisory_xact_lock({_LOCK})"
    if parse_url(url).get_backend_name() == "sqlite":
        begin = "BEGIN IMMEDIATE"
    engine = open_engine(url, foreign_keys=False, patient=True).execution_options(**{BEGIN: begin})
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def _config(connection: Connection) -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
