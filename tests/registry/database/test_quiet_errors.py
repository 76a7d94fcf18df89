"""What a database says of a statement that failed names no value: it is logged."""

import traceback
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from loraplex.registry.database.database import open_engine

from ..postgres import Postgres

VALUE = "a text of some tenant"
NOTES = "CREATE TEMPORARY TABLE notes (size integer, note varchar(100) UNIQUE, CONSTRAINT small CHECK (size < 9))"
RAISES = """
    CREATE FUNCTION pg_temp.refuse(note text) RETURNS void LANGUAGE plpgsql
    AS $$ BEGIN RAISE EXCEPTION '% is refused', note; END $$
"""


@pytest.fixture
def notes(database_url: str) -> Iterator[Connection]:
    engine = open_engine(database_url)
    with engine.connect() as connection:
        connection.execute(text(NOTES))
        connection.execute(text("INSERT INTO notes VALUES (1, :note)"), {"note": VALUE})
        yield connection
    engine.dispose()


def said(connection: Connection, statement: str) -> str:
    """All that a log would have of its failure."""
    with pytest.raises(DBAPIError) as failure:
        connection.execute(text(statement), {"note": VALUE})
    return "".join([*traceback.format_exception(failure.value), repr(failure.value), repr(failure.value.orig)])


@pytest.mark.parametrize(
    ("size", "name"), [(2, "notes"), (10, "small")], ids=["the same value again", "a row that is refused"]
)
def test_a_constraint_is_named_and_no_value(notes: Connection, size: int, name: str) -> None:
    """PostgreSQL's DETAIL has `Key (note)=(…) already exists.` and `Failing row contains (…).`"""
    words = said(notes, f"INSERT INTO notes VALUES ({size}, :note)")
    assert name in words and "INSERT INTO notes" in words
    assert VALUE not in words


@pytest.mark.parametrize(
    ("statement", "state"), [("SELECT CAST(:note AS integer)", "22P02"), ("SELECT pg_temp.refuse(:note)", "P0001")]
)
def test_a_message_that_quotes_is_left_out(postgres: Postgres, statement: str, state: str) -> None:
    with postgres.database() as url:
        engine = open_engine(url)
        with engine.connect() as connection:
            connection.execute(text(RAISES))
            words = said(connection, statement)
        engine.dispose()
    assert state in words and "hidden" in words
    assert VALUE not in words
