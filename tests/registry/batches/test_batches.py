"""Files and batches in the database: each tenant's own, from one status to the next, each line booked once."""

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest

from loraplex.registry.batches.batches import NewBatch, OutputFile
from loraplex.registry.batches.files import new_file_id
from loraplex.registry.batches.journal import Journal, Record, Used, encode
from loraplex.registry.batches.views import Batch, File
from loraplex.registry.database import tables
from loraplex.registry.database.tables import utc_now
from loraplex.registry.errors import (
    BatchEnded,
    BatchesWaiting,
    FileInUse,
    FilesFull,
    StorageFull,
    UnknownBatch,
    UnknownFile,
)
from loraplex.registry.registry import Registry
from loraplex.registry.usage.usage import UsageQuery

ACTOR = "key:0123456789ab"
LATER = timedelta(days=1)
MANY = 1 << 40
USED = Used("d" * 64, "sql", "2026-11-28", 7, 10, 4, 5, 0, False)


def add(registry: Registry, content: bytes = b"{}", tenant: str = "default", actor: str = ACTOR) -> File:
    with registry.files.begin(tenant, len(content), MANY) as writer:
        writer.write(content)
        return registry.files.add(writer, "in.jsonl", actor=actor, tenant=tenant, expires_at=utc_now() + LATER)


def begin(registry: Registry, tenant: str = "default") -> Batch:
    new = NewBatch("/v1/completions", add(registry, tenant=tenant).id, {"a": "b"})
    return registry.batches.create(new, actor=ACTOR, tenant=tenant, most_waiting=9)


def record(line: int, succeeded: bool = True) -> bytes:
    return encode(Record(line, succeeded, USED, msgspec.Raw(b"{}")))


def booked(registry: Registry) -> tuple[int, int]:
    """Requests and tokens in the usage ledger."""
    [row] = registry.usage.sums(UsageQuery(by=()))
    return row.requests, row.tokens


def test_what_a_tenant_keeps_is_its_own(registry: Registry) -> None:
    registry.tenants.create("acme", actor="system")
    mine, theirs = add(registry), add(registry, tenant="acme")
    assert [file.id for file in registry.files.list("acme").items] == [theirs.id]
    batch = begin(registry)
    calls: list[Callable[[], object]] = [
        lambda: registry.files.get(mine.id, "acme"),
        lambda: registry.files.delete(mine.id, "acme"),
        lambda: registry.files.list("acme", after=mine.id),
        lambda: registry.files.get(mine.id, "default", "key:another"),
        lambda: registry.files.get("file-\0", "default"),
        lambda: registry.batches.create(NewBatch("/v1/x", mine.id), actor=ACTOR, tenant="acme", most_waiting=9),
    ]
    for call in calls:
        with pytest.raises(UnknownFile):
            call()
    for read in (registry.batches.get, lambda id, tenant: registry.batches.cancel(id, actor=ACTOR, tenant=tenant)):
        with pytest.raises(UnknownBatch):
            read(batch.id, "acme")
    assert registry.batches.list("acme").items == []


def test_files_have_a_sum(registry: Registry) -> None:
    add(registry, b"a" * 60)
    with pytest.raises(FilesFull, match="60 bytes and may have 100"):
        registry.files.begin("default", 41, 100)
    registry.files.begin("default", 40, 100).__exit__(None, None, None)
    with pytest.raises(StorageFull):
        registry.files.begin("default", 1 << 60, 1 << 62)


def test_a_file_that_is_read_stays(registry: Registry) -> None:
    batch = begin(registry)
    with pytest.raises(FileInUse, match=batch.id):
        registry.files.delete(batch.input_file_id, "default")
    with registry.database.write() as session:
        session.get_one(tables.File, 1).expires_at = utc_now() - LATER
    registry.files.clean_up(timedelta(0))
    assert (registry.store.files / batch.input_file_id).exists()
    registry.batches.end(batch.id, "failed")
    registry.files.clean_up(timedelta(0))
    assert not (registry.store.files / batch.input_file_id).exists()


def test_a_batch_from_its_beginning_to_its_end(registry: Registry) -> None:
    batch = begin(registry)
    assert (batch.status, batch.metadata, batch.expires_at - batch.created_at) == (
        "validating",
        {"a": "b"},
        pytest.approx(timedelta(hours=24), abs=timedelta(seconds=5)),
    )
    assert [one.id for one in registry.batches.unfinished()] == [batch.id]
    assert registry.batches.begin(batch.id, 3).total == 3
    with registry.batches.journal(batch.id) as journal:
        journal.append(record(1) + record(2, succeeded=False))
        now = registry.batches.book(batch.id, journal)
        assert (now.completed, now.failed, now.prompt_tokens, now.completion_tokens) == (1, 1, 20, 10)
        assert booked(registry) == (2, 30)
        assert registry.batches.book(batch.id, journal) == now, "each record counts once"
        journal.append(record(3))
        registry.batches.book(batch.id, journal)
        assert booked(registry) == (3, 45)
        assert registry.batches.finalize(batch.id).status == "finalizing"
    file = OutputFile(new_file_id(), "out.jsonl", 7, utc_now() + LATER)
    for _ in range(2):  # the first transaction may have been lost with its process
        ended = registry.batches.end(batch.id, "completed", output=file)
    assert (ended.status, ended.output_file_id, ended.error_file_id) == ("completed", file.id, None)
    assert ended.completed_at is not None and ended.has_ended
    kept = registry.files.get(file.id, "default", ACTOR)
    assert (kept.purpose, kept.filename, kept.size) == ("batch_output", "out.jsonl", 7)
    assert registry.batches.unfinished() == []
    registry.batches.clean_up()
    assert list(registry.store.batches.iterdir()) == []


def test_what_no_ledger_had_is_booked_by_the_next_process(registry: Registry) -> None:
    batch = begin(registry)
    with registry.batches.journal(batch.id) as journal:
        journal.append(record(1))
        registry.batches.book(batch.id, journal)
        journal.append(record(2) + record(3)[:-5])
    with Journal(registry.store.batches / batch.id) as journal:
        assert journal.recover() == {1, 2}
        assert registry.batches.book(batch.id, journal).completed == 2
    assert booked(registry) == (2, 30)


def test_a_batch_is_cancelled_once_and_not_after_its_end(registry: Registry) -> None:
    batch = begin(registry)
    first = registry.batches.cancel(batch.id, actor=ACTOR, tenant="default")
    assert first.status == "cancelling" and first.cancelling_at is not None
    assert registry.batches.cancel(batch.id, actor=ACTOR, tenant="default") == first
    assert registry.batches.begin(batch.id, 3).status == "cancelling"
    assert registry.batches.finalize(batch.id).status == "cancelling"
    registry.batches.end(batch.id, "cancelled")
    with pytest.raises(BatchEnded, match="'cancelled'"):
        registry.batches.cancel(batch.id, actor=ACTOR, tenant="default")
    entries = registry.audit.entries()
    assert [entry.action for entry in entries if entry.action.startswith("batch.")] == ["batch.cancel"]


def test_a_tenant_has_so_many_that_have_not_ended(registry: Registry) -> None:
    new = NewBatch("/v1/completions", add(registry).id)
    first = registry.batches.create(new, actor=ACTOR, tenant="default", most_waiting=1)
    with pytest.raises(BatchesWaiting, match="1 of your batches"):
        registry.batches.create(new, actor=ACTOR, tenant="default", most_waiting=1)
    registry.batches.end(first.id, "failed", errors=[{"code": "x", "message": "y"}])
    second = registry.batches.create(new, actor=ACTOR, tenant="default", most_waiting=1)
    page = registry.batches.list("default", limit=1)
    assert ([one.id for one in page.items], page.has_more) == ([second.id], True)
    page = registry.batches.list("default", after=second.id)
    assert ([one.id for one in page.items], page.has_more) == ([first.id], False)
    assert page.items[0].errors == [{"code": "x", "message": "y"}]
