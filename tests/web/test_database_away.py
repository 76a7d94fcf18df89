"""A database that is away: what needs it gets a 503 in words; a statement that is wrong stays a fault of ours."""

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from loraplex.registry.database.database import Database
from loraplex.web.http.database_errors import is_away, log_failure

from .conftest import KEY


class FromServer(Exception):
    """As psycopg raises it: what PostgreSQL has said."""

    def __init__(self, sqlstate: str) -> None:
        self.sqlstate = sqlstate


def sqlite_error(folder: Path, statement: str, locked: bool = False, full: bool = False) -> Exception:
    """What our driver raises for a statement, perhaps while somebody else writes, or where there is no more room."""
    file = folder / "some.db"
    engine = create_engine(f"sqlite:///{file}", connect_args={"timeout": 0})
    with sqlite3.connect(file) as other, engine.connect() as connection, pytest.raises(DBAPIError) as raised:
        if locked:
            other.execute("BEGIN EXCLUSIVE")
        if full:
            connection.exec_driver_sql("PRAGMA max_page_count = 1")
        connection.exec_driver_sql(statement)
    other.close()
    engine.dispose()
    return raised.value


CASES: dict[str, tuple[Callable[[Path], Exception], bool]] = {
    "no connection": (lambda _: OperationalError("", None, Exception("Can't create a connection")), True),
    "a connection that broke": (
        lambda _: DBAPIError("", None, Exception("network error"), connection_invalidated=True),
        True,
    ),
    "a server that shuts down": (lambda _: ProgrammingError("", None, FromServer("57P01")), True),
    "a server that is full": (lambda _: DBAPIError("", None, FromServer("53300")), True),
    "no connection to be had in time": (lambda _: PoolTimeoutError(), True),
    "a disk that is full": (lambda folder: sqlite_error(folder, "CREATE TABLE a (b)", full=True), True),
    "a server whose disk is full": (lambda _: DBAPIError("", None, FromServer("53100")), True),
    "a table that is not there": (lambda _: ProgrammingError("", None, FromServer("42P01")), False),
    "a file that is locked": (lambda folder: sqlite_error(folder, "CREATE TABLE a (b)", locked=True), True),
    "a table that is not in the file": (lambda folder: sqlite_error(folder, "SELECT * FROM nothing"), False),
    "another error": (lambda _: ValueError("SELECT"), False),
}


@pytest.mark.parametrize("case", CASES)
async def test_what_is_away(
    case: str, client: httpx.AsyncClient, admin: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, away = CASES[case]
    error = make(tmp_path)
    assert is_away(error) is away

    @contextmanager
    def fail(_database: Database) -> Iterator[None]:
        raise error
        yield

    monkeypatch.setattr(Database, "write", fail)
    answer = await client.post("/api/v1/tenants", json={"name": "acme"}, headers=admin)
    assert answer.status_code == (503 if away else 500)
    assert answer.headers.get("retry-after") == ("5" if away else None)
    assert answer.json()["error"]["code"] == ("unavailable" if away else "internal_error")
    if away:
        fault = "The database's disk is full" if "disk" in case else "The database is unavailable"
        assert answer.json()["error"]["message"].startswith(fault)
    page = await client.post("/tenants", headers=admin | {"accept": "text/html"}, data={"name": "acme"})
    assert page.status_code == answer.status_code and "<h1>" in page.text
    assert (await client.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})).status_code == 200


async def test_pages_that_only_show(
    client: httpx.AsyncClient, admin: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def fail(_database: Database) -> Iterator[None]:
        raise OperationalError("", None, Exception("Can't create a connection"))
        yield

    monkeypatch.setattr(Database, "read", fail)
    for path in ("/users", "/tenants", "/audit", "/usage"):
        page = await client.get(path, headers=admin | {"accept": "text/html"})
        assert page.status_code == 503 and "The database is unavailable" in page.text, path


@pytest.mark.parametrize("error", [OperationalError("SELECT 1", None, Exception("no connection")), KeyError("fault")])
def test_work_in_the_background_tells_a_database_that_is_away_in_a_line(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """And a fault of ours with its trace."""
    log_failure(logging.getLogger("loraplex.test"), "usage cannot be recorded now", error)
    [record] = caplog.records
    if isinstance(error, OperationalError):
        assert (record.getMessage(), record.exc_info) == ("usage cannot be recorded now: no connection", None)
    else:
        assert record.getMessage() == "usage cannot be recorded now"
        assert record.exc_info is not None and record.exc_info[1] is error
