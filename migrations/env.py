"""Runs the migrations on the connection that loraplex.registry.database.migrate hands over.

From the command line: on `alembic -x url=...`, else on LORAPLEX_DATABASE_URL.
"""

import os

from alembic import context
from sqlalchemy import Connection

from loraplex.registry.database.database import open_engine
from loraplex.registry.database.tables import Table


def database_url() -> str:
    url = context.get_x_argument(as_dictionary=True).get("url") or os.environ.get("LORAPLEX_DATABASE_URL")
    if not url:
        raise SystemExit("Which database? Run alembic -x url=sqlite:///path/to/file ..., or set LORAPLEX_DATABASE_URL.")
    return url


def run(connection: Connection) -> None:
    """SQLite cannot alter most of a table, so there a change rebuilds it (batch mode)."""
    context.configure(
        connection=connection,
        target_metadata=Table.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def run_from_command_line() -> None:
    engine = open_engine(database_url(), foreign_keys=False)
    with engine.begin() as connection:
        run(connection)
    engine.dispose()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    run_from_command_line()
