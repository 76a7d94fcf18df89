"""The usage ledger: what is booked, what a crash leaves, and that nothing counts twice."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy.orm import Session

from loraplex.registry.database.database import open_engine
from loraplex.registry.database.migrate import FOLDER, upgrade
from loraplex.registry.registry import Registry
from loraplex.registry.usage.ledger import COUNTS, Account, Ledger, OpenEntry
from loraplex.registry.usage.sums import UsageCounts, total_of
from loraplex.registry.usage.usage import HourOfUse, UsageQuery

from ..helpers import BASE as BASE_MODEL

ROOT = Path(__file__).parents[3]
SQL = Account("default", "key:0123456789ab", "d" * 64, "sql")
BASE = Account("default", "user:admin", "", "demo")
NOON = datetime(2026, 11, 22, 12, 30, tzinfo=UTC)
ALL = UsageQuery(by=())


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "usage"


@pytest.fixture
def ledger(registry: Registry, folder: Path, clock: Clock) -> Ledger:
    return Ledger(registry.database, folder, clock)


def end(ledger: Ledger, entry: OpenEntry, error: bool = False) -> None:
    ledger.settle(entry, prompt_tokens=10, cached_tokens=4, completion_tokens=5, error=error)


def serve(ledger: Ledger, account: Account, times: int = 1) -> None:
    for _ in range(times):
        end(ledger, ledger.open(account, 100))


def total(registry: Registry) -> dict[str, Any]:
    [sums] = registry.usage.sums(ALL)
    return {name: count for name, count in msgspec.to_builtins(sums).items() if count}


def kill(ledger: Ledger) -> None:
    """What the end of a process does to its lock."""
    ledger._writer_lock.release(remove=False)


def test_hours_are_told_of_all_keys_together_without_copies(registry: Registry, ledger: Ledger, clock: Clock) -> None:
    for account in (
        SQL,
        Account("default", "user:admin", "d" * 64, "sql"),
        Account("default", "shadow", "d" * 64, "sql"),
    ):
        serve(ledger, account, 2)
    clock.now += timedelta(hours=13)
    end(ledger, ledger.open(SQL, 100), error=True)
    ledger.flush()
    noon = int(NOON.replace(minute=0).timestamp())
    sql, later = ("default", "sql", "d" * 64), noon + 13 * 3600
    hours = registry.usage.hours_since("2026-11-22", without="shadow")
    assert sorted(hours, key=lambda one: one.begin) == [
        HourOfUse(*sql, noon, 4, 0, 20),
        HourOfUse(*sql, later, 1, 1, 5),
    ]
    assert [one.begin for one in registry.usage.hours_since("2026-11-23", without="shadow")] == [later]


def test_requests_are_booked_by_hour_key_and_version(registry: Registry, ledger: Ledger, clock: Clock) -> None:
    serve(ledger, SQL, 2)
    crossing = ledger.open(BASE, 100)
    ledger.flush()
    clock.now += timedelta(hours=13)
    end(ledger, crossing, error=True)
    ledger.flush()
    whole = {"requests": 3, "errors": 1, "prompt_tokens": 30, "cached_tokens": 12, "completion_tokens": 15}
    assert total(registry) == whole
    rows = registry.usage.sums(UsageQuery(by=("hour", "key", "adapter")))
    places = [(row.day, row.hour, row.actor, row.adapter_name, row.requests) for row in rows]
    assert places == [
        ("2026-11-23", 1, "user:admin", "demo", 1),
        ("2026-11-22", 12, "key:0123456789ab", "sql", 2),
    ]
    assert {row.adapter_digest for row in rows} == {"", "d" * 64}
    for query, requests in (
        (UsageQuery(first="2026-11-23", by=()), 1),
        (UsageQuery(last="2026-11-22", by=()), 2),
        (UsageQuery(adapter="sql", by=()), 2),
        (UsageQuery(actor="user:admin", by=()), 1),
        (UsageQuery(tenant="other", by=()), 0),
    ):
        assert registry.usage.sums(query)[0].requests == requests, query
    assert registry.usage.tokens_of_day("2026-11-22") == {("default", "key:0123456789ab"): 30}


def test_what_is_not_booked_yet_is_known(registry: Registry, ledger: Ledger) -> None:
    serve(ledger, SQL, 3)
    assert ledger.unbooked_tokens("2026-11-22") == {("default", "key:0123456789ab"): 45}
    ledger.flush()
    assert ledger.unbooked_tokens("2026-11-22") == {}


def test_a_crash_leaves_unknown_requests_with_what_was_reserved(
    registry: Registry, ledger: Ledger, folder: Path, clock: Clock
) -> None:
    serve(ledger, SQL)
    ended = ledger.open(SQL, 100)
    ledger.open(BASE, 70)
    ledger.flush()
    end(ledger, ended)
    kill(ledger)
    heir = Ledger(registry.database, folder, clock)
    assert (heir.settle_gone(), heir.settle_gone()) == (2, 0)
    assert total(registry) == {
        "requests": 3,
        "unknown": 2,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 5,
        "unknown_tokens": 170,
    }
    assert registry.usage.tokens_of_day("2026-11-22") == {("default", SQL.actor): 115, ("default", BASE.actor): 70}


def test_who_lives_is_left_alone(registry: Registry, ledger: Ledger, folder: Path, clock: Clock) -> None:
    ledger.open(SQL, 100)
    ledger.flush()
    clock.now += timedelta(hours=1)
    assert Ledger(registry.database, folder, clock).settle_gone() == 0
    elsewhere = Ledger(registry.database, folder.parent / "another machine", clock)
    clock.now -= timedelta(minutes=59, seconds=30)
    assert elsewhere.settle_gone() == 0
    clock.now += timedelta(minutes=2)
    assert elsewhere.settle_gone() == 1


def test_an_orderly_end_leaves_nothing_to_settle(
    registry: Registry, ledger: Ledger, folder: Path, clock: Clock
) -> None:
    entry = ledger.open(SQL, 100)
    ledger.flush()
    end(ledger, entry)
    ledger.close()
    assert list(folder.iterdir()) == []
    assert Ledger(registry.database, folder, clock).settle_gone() == 0
    assert total(registry)["requests"] == 1


@pytest.mark.parametrize("committed", [False, True])
def test_a_batch_counts_once_whatever_the_database_said(
    registry: Registry, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    original = registry.database.write

    @contextmanager
    def lost() -> Iterator[Session]:
        with original() as session:
            yield session
            if not committed:
                raise ConnectionError("gone before the commit")
        raise ConnectionError("gone after the commit")

    entry = ledger.open(SQL, 100)
    with monkeypatch.context() as patch:
        patch.setattr(registry.database, "write", lost)
        for _ in range(2):
            serve(ledger, SQL)
            with pytest.raises(ConnectionError):
                ledger.flush()
    end(ledger, entry)
    ledger.flush()
    ledger.flush()
    assert total(registry)["requests"] == 3
    ledger.close()


def test_processes_add_to_the_same_rows(registry: Registry, folder: Path) -> None:
    ledgers = [Ledger(registry.database, folder) for _ in range(3)]

    def work(ledger: Ledger) -> None:
        for _ in range(8):
            for account in (SQL, BASE):
                serve(ledger, account, 5)
            ledger.flush()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, ledgers))
    assert total(registry)["requests"] == 3 * 8 * 2 * 5


KILLED = """
import os, signal, sys
from pathlib import Path
from loraplex.registry.database.database import Database
from loraplex.registry.usage.ledger import Account, Ledger
ledger = Ledger(Database(sys.argv[1]), Path(sys.argv[2]))
account = Account("default", "key:0123456789ab", "", "demo")
ended = [ledger.open(account, 100) for _ in range(20)]
ledger.flush()
for entry in ended:
    ledger.settle(entry, prompt_tokens=10, cached_tokens=0, completion_tokens=5, error=False)
ledger.open(account, 40)
ledger.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_loses_nothing_that_was_flushed(registry: Registry, database_url: str, folder: Path) -> None:
    command = [sys.executable, "-c", KILLED, database_url, str(folder)]
    killed = subprocess.run(command, env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True)
    assert killed.returncode == -9, killed.stderr
    assert Ledger(registry.database, folder).settle_gone() == 1
    found = total(registry)
    assert (found["requests"], found["unknown"], found["prompt_tokens"], found["unknown_tokens"]) == (21, 1, 200, 40)


def test_days_are_the_sums_of_their_hours_also_of_before_there_were_days(
    empty_url: str, tmp_path: Path, clock: Clock
) -> None:
    upgrade(empty_url)
    registry = Registry.open(empty_url, tmp_path / "artifacts", BASE_MODEL, free_floor=0)
    ledger = Ledger(registry.database, tmp_path / "usage", clock)
    for account in (SQL, BASE, SQL):
        serve(ledger, account)
        ledger.flush()
        clock.now += timedelta(hours=6)
    engine, config = open_engine(empty_url, foreign_keys=False), Config()
    config.set_main_option("script_location", str(FOLDER))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0010")
    engine.dispose()
    upgrade(empty_url)
    serve(ledger, SQL)
    ledger.close()
    by_hour = registry.usage.sums(UsageQuery(by=("hour", "key", "adapter")))
    by_day = registry.usage.sums(UsageQuery(by=("day", "key", "adapter")))
    assert len(by_hour) == 4
    assert [(row.day, row.actor, row.requests) for row in by_day] == [
        ("2026-11-23", SQL.actor, 2),
        ("2026-11-22", SQL.actor, 1),
        ("2026-11-22", BASE.actor, 1),
    ]
    for name in COUNTS:
        assert sum(getattr(row, name) for row in by_day) == sum(getattr(row, name) for row in by_hour), name
    assert registry.usage.days(UsageQuery()) == ["2026-11-23", "2026-11-22"]
    heaviest = registry.usage.sums(UsageQuery(), largest_first=True)
    assert [row.tokens for row in heaviest] == sorted((row.tokens for row in by_day), reverse=True)
    largest = registry.usage.sums(UsageQuery(by=("key",)), 1, largest_first=True)
    assert [row.actor for row in largest] == [SQL.actor]
    for by in ((), ("key",), ("day",), ("day", "key", "adapter"), ("hour", "key", "adapter")):
        query = UsageQuery(by=by)
        [total], rows = registry.usage.sums(UsageQuery(by=())), registry.usage.sums(query, largest_first=True)
        for most in (1, 2, 4):
            table = registry.usage.table(query, most, largest_first=True)
            assert (table.rows, table.whole) == (rows[:most], len(rows) <= most), (by, most)
            assert table.total == total_of([total]), (by, most)
    nothing = registry.usage.table(UsageQuery(adapter="nobody", by=("key",)), 1)
    assert (nothing.rows, nothing.whole, nothing.total) == ([], True, UsageCounts())
    registry.close()
