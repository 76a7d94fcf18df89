"""PostgreSQL whose connections break or fall silent: told as such, in bounded time, and used again once it is back."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Literal

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from loraplex.registry.database import migrate, postgresql
from loraplex.registry.database.database import Database, open_engine
from loraplex.registry.database.migrate import upgrade
from loraplex.web.http.database_errors import is_away

from .postgres import Postgres
from .relay import Relay

SILENCE = 1


@pytest.fixture(autouse=True)
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "SILENCE_SECONDS", SILENCE)


@pytest.fixture
def url(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as url:
        yield url


@pytest.fixture
def relay(url: str) -> Iterator[Relay]:
    server = make_url(url)
    assert server.host is not None and server.port is not None
    with Relay(server.host, server.port) as relay:
        yield relay


@pytest.fixture
def database(url: str, relay: Relay) -> Iterator[Database]:
    """Through the relay."""
    database = Database(make_url(url).set(port=relay.port).render_as_string(hide_password=False))
    yield database
    database.close()


def ask(session: Session) -> None:
    assert session.execute(text("SELECT 7")).scalar_one() == 7


@pytest.mark.parametrize("mode", ["break", "silent"])
@pytest.mark.parametrize("moment", ["the first connection", "the next transaction", "a statement", "the commit"])
def test_a_connection_that_is_lost(
    database: Database, relay: Relay, moment: str, mode: Literal["break", "silent"], caplog: pytest.LogCaptureFixture
) -> None:
    if moment != "the first connection":
        with database.read() as session:
            ask(session)
    if moment in ("the first connection", "the next transaction"):
        relay.mode = mode
    begun = time.monotonic()
    with pytest.raises(DBAPIError) as raised, database.write() as session:
        ask(session)
        relay.mode = mode
        if moment == "a statement":
            ask(session)
    assert is_away(raised.value), raised.value
    assert time.monotonic() - begun < 10 * SILENCE
    relay.mode = "pass"
    with database.read() as session:
        ask(session)
    assert caplog.records == [], "nobody who takes up the log need read what the request was told"


@pytest.mark.parametrize(
    "step", [(postgresql, "limit_statements"), (PGDialect_psycopg, "initialize")], ids=lambda step: step[1]
)
def test_a_server_that_falls_silent_after_its_greeting(
    database: Database, relay: Relay, step: tuple[object, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = getattr(*step)

    def fall_silent(*given: object) -> object:
        relay.mode = "silent"
        return begin(*given)

    monkeypatch.setattr(*step, fall_silent)
    with pytest.raises(DBAPIError) as raised, database.read() as session:
        ask(session)
    assert is_away(raised.value), raised.value
    monkeypatch.undo()
    relay.mode = "pass"
    with database.read() as session:
        ask(session)


def test_those_that_are_older_are_given_up_with_a_silent_one(database: Database, relay: Relay) -> None:
    """Each is opened anew, and not asked first, for which another request would wait in silence."""
    with ExitStack() as several:
        for _ in range(3):
            ask(several.enter_context(database.read()))
    assert relay.taken == 3
    with pytest.raises(DBAPIError), database.read() as session:
        ask(session)
        relay.mode = "silent"
        ask(session)
    relay.mode = "pass"
    for expected in (4, 5, 6, 6):
        with database.read() as session:
            ask(session)
        assert relay.taken == expected


def test_a_statement_that_takes_too_long_ends_alone(database: Database, relay: Relay) -> None:
    """On the server too, and its connection is good for more."""
    with pytest.raises(DBAPIError, match="statement timeout") as raised, database.read() as session:
        session.execute(text("SELECT pg_sleep(30)"))
    assert is_away(raised.value)
    with database.read() as session:
        ask(session)
        running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(30)%' AND state = 'active'"
        assert session.execute(text(f"{running} AND pid <> pg_backend_pid()")).scalar_one() == 0
    assert relay.taken == 1


def test_a_fault_of_ours_is_none_of_the_connections(database: Database, relay: Relay) -> None:
    with pytest.raises(DBAPIError) as raised, database.read() as session:
        session.execute(text("SELECT nothing FROM nowhere"))
    assert not is_away(raised.value)
    with database.read() as session:
        ask(session)
    assert relay.taken == 1


@pytest.mark.parametrize("query", ["", "?sslmode=require"])
def test_who_listens_and_never_answers(query: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(OperationalError, match="timeout expired"):
            upgrade(f"postgresql://a:sesame@127.0.0.1:{port}/c{query}")


def test_nobody_listens() -> None:
    """In words, once: without the driver's settings, and without the password."""
    with pytest.raises(OperationalError) as refused:
        upgrade("postgresql://a:sesame@127.0.0.1:1/c")
    words = str(refused.value.orig)
    assert 'connection to server at "127.0.0.1", port 1 failed: Connection refused' in words
    assert "\n" not in words and "sesame" not in words


def test_a_migration_waits_for_another_one_however_long_it_takes(postgres: Postgres) -> None:
    with postgres.database("template0") as url:
        other = open_engine(url)
        with other.begin() as connection:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({migrate._LOCK})")
            waiting = threading.Thread(target=upgrade, args=(url,))
            waiting.start()
            time.sleep(3 * SILENCE)
            assert waiting.is_alive() and migrate.current(url) is None
        waiting.join(60)
        other.dispose()
        assert migrate.is_current(url)


def test_a_writer_that_vanishes_gives_its_locks_back(database: Database) -> None:
    with database.write() as session:
        assert session.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one() == "1min"
    with database.read() as session:
        assert session.execute(text("SHOW transaction_isolation")).scalar_one() == "repeatable read"
