"""Each trouble has its own words: a silent engine, a database that is away or old, a disk that is full."""

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from loraplex.registry.snapshot import Snapshots
from loraplex.web.endpoints import authentication as auth
from loraplex.web.observability import database_watch
from loraplex.web.state import State

from ..fake_engine import FakeEngine

MOST_SECONDS = 30


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + MOST_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def reasons(client: httpx.AsyncClient) -> list[str]:
    """Why it is not ready."""
    answer = await client.get("/ready")
    found: list[str] = answer.json()["reasons"]
    assert answer.status_code == (503 if found else 200)
    return found


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Reading the desired state hangs until the event is set."""
    free, refresh = threading.Event(), Snapshots.refresh

    def wait(snapshots: Snapshots) -> bool:
        free.wait(MOST_SECONDS)
        return refresh(snapshots)

    monkeypatch.setattr(Snapshots, "refresh", wait)
    yield free
    free.set()


async def test_a_silent_engine_is_no_database_that_is_away(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never answers what it was asked about adapters; keys are read on meanwhile, new ones too."""
    asked = asyncio.Event()

    async def never(_digest: str) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(engine, "unregister_adapter", never)
    monkeypatch.setattr(auth, "MAX_SNAPSHOT_AGE", 5.0)
    state.reconciler._left.add("of a visit")
    await asyncio.wait_for(asked.wait(), MOST_SECONDS)
    begun = time.monotonic()
    while time.monotonic() < begun + 8:
        answer = await client.get("/v1/models")
        assert answer.status_code == 200, answer.text
        await asyncio.sleep(0.2)
    token = state.registry.keys.create("new", ["inference"], actor="system").token
    generation = state.registry.snapshots.current.revision
    await until(lambda: state.registry.snapshots.current.revision > generation)
    assert (await client.get("/v1/models", headers={"authorization": f"Bearer {token}"})).status_code == 200
    assert await reasons(client) == ["adapters are being registered with the engine"]


async def test_threads_that_are_all_taken_make_no_database_old(
    client: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "MAX_SNAPSHOT_AGE", 5.0)
    free = threading.Event()
    work = [asyncio.create_task(asyncio.to_thread(free.wait, MOST_SECONDS)) for _ in range(100)]
    await asyncio.sleep(8)
    try:
        assert (await client.get("/v1/models")).status_code == 200
        assert await reasons(client) == []
    finally:
        free.set()
        await asyncio.gather(*work)


async def test_a_database_that_does_not_answer_is_told_of_in_seconds(
    client: httpx.AsyncClient, state: State, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    await until(lambda: state.database_watch.obstacle() is not None)
    [reason] = await reasons(client)
    assert reason.startswith("the database has not answered for ")
    assert (await client.get("/v1/models")).status_code == 200, "keys are believed"
    monkeypatch.setattr(auth, "MAX_SNAPSHOT_AGE", 0.0)
    refused = await client.get("/v1/models")
    assert refused.status_code == 503
    assert "Keys cannot be checked: the database has not answered for" in refused.json()["error"]["message"]
    hanging.set()
    await until(lambda: state.database_watch.obstacle() is None)
    assert await reasons(client) == []


async def test_a_database_that_refuses_is_told_of_and_logged_once(
    client: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_snapshots: Snapshots) -> bool:
        raise OperationalError("", None, Exception("Can't create a connection"))

    with monkeypatch.context() as patch:
        patch.setattr(Snapshots, "refresh", refuse)
        await until(lambda: state.database_watch.obstacle() is not None)
        assert await reasons(client) == ["the database is unavailable"]
        await asyncio.sleep(1.5)
    told = [record for record in caplog.records if "cannot be read" in record.getMessage()]
    assert len(told) == 1 and "Can't create a connection" in told[0].getMessage()
    await until(lambda: state.database_watch.obstacle() is None)


async def test_an_old_schema_is_told_of(
    client: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_watch, "SCHEMA_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(database_watch, "is_current", lambda url: False)
        await until(lambda: state.database_watch.obstacle() is not None)
        assert await reasons(client) == ["the database is not migrated to the newest schema"]
    await until(lambda: state.database_watch.obstacle() is None)


async def test_a_full_disk_is_a_warning_while_all_is_served(
    client: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=1 << 30, used=1 << 30, free=0))
    await until(lambda: state.database_watch.warning is not None)
    answer = await client.get("/ready")
    assert (answer.status_code, answer.json()["reasons"]) == (200, [])
    assert answer.json()["warnings"] == [
        "the disk of the data folder is full: nothing can be changed, and usage is kept in memory"
    ]
