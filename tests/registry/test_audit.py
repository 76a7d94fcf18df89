"""The audit log's chain: it holds under concurrency, and nothing can be changed, removed or added unseen."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text

from loraplex.registry.audit import AuditFilter, record
from loraplex.registry.database.database import open_engine
from loraplex.registry.database.migrate import FOLDER, upgrade
from loraplex.registry.registry import Registry
from loraplex.registry.revision import bump_revision

from .helpers import BASE, add

BY = "user:admin"


def fill(registry: Registry, count: int = 5) -> None:
    for number in range(count):
        registry.keys.create(f"key {number} ü 😀", ["inference"], actor=BY)


def execute(registry: Registry, statement: str) -> None:
    with registry.database.write() as session:
        session.execute(text(statement))


def test_the_chain_holds_over_all_kinds_of_rows(registry: Registry) -> None:
    assert (registry.audit.verify().rows, registry.audit.verify().problem) == (0, None)
    fill(registry)
    add(registry, "sql", b"one")
    registry.adapters.remove("sql", actor=BY)
    registry.tenants.create("acme", actor=BY)
    verdict, entries = registry.audit.verify(), registry.audit.entries()
    assert (verdict.rows, verdict.problem, verdict.head) == (8, None, entries[0].hash)
    assert [entry.id for entry in entries] == list(range(8, 0, -1))
    assert all(entry.intact for entry in entries)
    assert [entry.action for entry in registry.audit.entries(tenant="acme")] == ["tenant.create"]
    assert [entry.id for entry in registry.audit.entries(limit=2, before=5)] == [4, 3]


@pytest.mark.parametrize(
    ("crime", "row"),
    [
        ("UPDATE audit SET actor = 'user:nobody' WHERE id = 3", 3),
        ("UPDATE audit SET tenant_id = NULL WHERE id = 3", 3),
        ("DELETE FROM audit WHERE id = 3", 4),
        ("DELETE FROM audit WHERE id = 1", 2),
        ("UPDATE audit SET id = 99 WHERE id = 3", 4),
    ],
)
def test_a_row_that_was_changed_or_removed_is_named(registry: Registry, crime: str, row: int) -> None:
    fill(registry)
    head = registry.audit.verify().head
    execute(registry, crime)
    verdict = registry.audit.verify()
    assert verdict.problem is not None and f"Row {row} " in verdict.problem
    assert verdict.head == head
    assert [entry.id for entry in registry.audit.entries() if not entry.intact][-1] == row


def test_an_end_that_was_cut_off_is_seen(registry: Registry) -> None:
    fill(registry)
    execute(registry, "DELETE FROM audit WHERE id > 3")
    assert registry.audit.verify().problem == "The chain ends at row 3, but should end at row 5."


def test_what_was_rolled_back_was_never_written(registry: Registry) -> None:
    fill(registry, 1)

    def fail() -> None:
        with registry.database.write() as session:
            record(session, BY, "key.create", "key:none")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    fill(registry, 1)
    assert (registry.audit.verify().rows, registry.audit.verify().problem) == (2, None)


def test_writers_do_not_fork_the_chain(registry: Registry) -> None:
    def write(worker: int) -> None:
        for number in range(6):
            with registry.database.write() as session:
                if worker % 2:
                    bump_revision(session)
                record(session, f"worker {worker}", "test", f"row:{number}", number=number)
                record(session, f"worker {worker}", "test.twice", f"row:{number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    verdict = registry.audit.verify()
    assert (verdict.rows, verdict.problem) == (48, None)


def test_rows_of_before_the_chain_are_chained(empty_url: str, tmp_path: Path) -> None:
    upgrade(empty_url)
    engine = open_engine(empty_url, foreign_keys=False)
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0008")
    rows = [(3, "2026-11-20 10:00:00.000001+00:00"), (7, "2026-11-21 10:00:00.000000+00:00")]
    with engine.begin() as connection:
        for id, at in rows:
            old = (
                "INSERT INTO audit (id, at, actor, action, subject, detail) VALUES (:id, :at, 'cli', 'x', 's', :detail)"
            )
            if engine.dialect.name == "postgresql":
                old = old.replace(":at", "CAST(:at AS timestamptz)").replace(":detail", "CAST(:detail AS json)")
            moment = at if engine.dialect.name == "postgresql" else at.removesuffix("+00:00")
            connection.execute(text(old), {"id": id, "at": moment, "detail": '{"b": 1.5, "a": ["ü", null]}'})
    engine.dispose()
    upgrade(empty_url)
    registry = Registry.open(empty_url, tmp_path / "artifacts", BASE, free_floor=0)
    fill(registry, 1)
    entries, verdict = registry.audit.entries(), registry.audit.verify()
    assert [entry.id for entry in entries] == [8, 7, 3]
    assert (verdict.rows, verdict.problem) == (3, None) and all(entry.intact for entry in entries)
    with registry.database.read() as session:
        numbers = session.execute(text("SELECT id, number FROM audit ORDER BY id")).all()
    assert [tuple(row) for row in numbers] == [(3, 1), (7, 2), (8, 1)], "two of the server itself, one of a tenant"
    registry.close()


def test_rows_are_searched_by_parts_days_and_tenant(registry: Registry) -> None:
    fill(registry, 2)
    registry.tenants.create("acme", actor="user:Eve_1")
    day = registry.audit.entries(1)[0].at.date()
    for wanted, found in (
        (AuditFilter(), [3, 2, 1]),
        (AuditFilter(actor="eve_"), [3]),
        (AuditFilter(actor="eve%"), []),
        (AuditFilter(action="KEY", subject="key:"), [2, 1]),
        (AuditFilter(tenant="acme"), [1]),
        (AuditFilter(first=day, last=day), [3, 2, 1]),
        (AuditFilter(last=day - timedelta(days=1)), []),
        (AuditFilter(first=day + timedelta(days=1)), []),
    ):
        assert [entry.id for entry in registry.audit.search(wanted)] == found, wanted
    assert registry.audit.get(2) == registry.audit.entries()[1]
    assert (registry.audit.get(2, AuditFilter("acme")), registry.audit.get(9), registry.audit.head()) == (None, None, 3)
