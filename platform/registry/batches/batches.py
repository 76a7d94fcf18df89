"""Batches: what tenants have asked for, and each step from one status to the next, in one transaction."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session, joinedload

from ..access.tenants import tenant_id
from ..audit import record
from ..database import tables
from ..database.database import Database
from ..database.tables import utc_now
from ..errors import BatchEnded, BatchesWaiting, UnknownBatch, UnknownFile
from ..files.artifacts import ArtifactStore
from ..revision import hold_changes
from ..usage.ledger import book
from .booking import Sums
from .files import INPUT, OUTPUT, add_row
from .journal import Journal
from .paging import find_row, page_of
from .views import ENDED, UNFINISHED, Batch, Page, batch_view

WINDOW: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class NewBatch:
    """What is asked for. `output_seconds`: as of a Batch."""

    endpoint: str
    input_file_id: str
    metadata: Mapping[str, str] | None = None
    output_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One that is in the store already."""

    id: str
    filename: str
    size: int
    expires_at: datetime


class Batches:
    """Where a tenant is taken, its batches alone exist, and where an `owner` is given, those of that actor alone."""

    def __init__(self, database: Database, store: ArtifactStore) -> None:
        self._database, self._store = database, store

    def create(self, new: NewBatch, *, actor: str, tenant: str, owner: str | None = None, most_waiting: int) -> Batch:
        """Raises UnknownFile, BatchesWaiting."""
        with self._database.write() as session:
            hold_changes(session)
            mine, batch = tenant_id(session, tenant), tables.Batch
            file = find_row(session, tables.File, new.input_file_id, tenant, owner)
            if file is None or file.purpose != INPUT or (file.expires_at is not None and file.expires_at < utc_now()):
                raise UnknownFile(f"No such File object: {new.input_file_id[:80]}", "input_file_id")
            unfinished = select(func.count()).where(batch.tenant_id == mine, batch.status.in_(UNFINISHED))
            if (session.scalar(unfinished) or 0) >= most_waiting:
                raise BatchesWaiting(
                    f"{most_waiting} of your batches have not ended, the limit. Wait for one of them, or cancel one."
                )
            row = tables.Batch(
                id=f"batch_{secrets.token_hex(12)}",
                tenant_id=mine,
                endpoint=new.endpoint,
                input_file_id=file.id,
                status="validating",
                created_by=actor,
                details=None if new.metadata is None else dict(new.metadata),
                output_seconds=new.output_seconds,
                expires_at=utc_now() + WINDOW,
            )
            session.add(row)
            session.flush()
            return batch_view(row)

    def get(self, id: str, tenant: str, owner: str | None = None) -> Batch:
        """Raises UnknownBatch."""
        with self._database.read() as session:
            return batch_view(_found(session, id, tenant, owner))

    def list(self, tenant: str, owner: str | None = None, *, after: str | None = None, limit: int = 20) -> Page[Batch]:
        """The newest first. Raises UnknownBatch for an `after` that does not exist."""
        with self._database.read() as session:
            last = None if after is None else _found(session, after, tenant, owner)
            rows, more = page_of(session, tables.Batch, tenant, owner, last, limit, True)
            return Page([batch_view(row) for row in rows], more)

    def cancel(self, id: str, *, actor: str, tenant: str, owner: str | None = None) -> Batch:
        """It ends soon, with what has run by then. Raises UnknownBatch, BatchEnded."""
        with self._database.write() as session:
            hold_changes(session)
            row = _found(session, id, tenant, owner)
            if row.status in ENDED:
                raise BatchEnded(f"Cannot cancel a batch with status '{row.status}'.")
            if row.status != "cancelling":
                row.status, row.cancelling_at = "cancelling", utc_now()
                record(session, actor, "batch.cancel", f"batch:{row.id}", tenant_id=row.tenant_id)
            return batch_view(row)

    def unfinished(self) -> Sequence[Batch]:
        """Of all tenants, the oldest first."""
        row = tables.Batch
        query = select(row).where(row.status.in_(UNFINISHED)).order_by(row.number).options(joinedload(row.tenant))
        with self._database.read() as session:
            return [batch_view(found) for found in session.scalars(query)]

    def journal(self, id: str) -> Journal:
        """Raises JournalBusy where another process runs the batch."""
        return Journal(self._store.batches / id)

    def begin(self, id: str, total: int) -> Batch:
        """Its file was read: so many lines are to run. Does nothing to a batch that is to be cancelled."""
        with self._own(id) as (_, row):
            if row.status == "validating":
                row.status, row.in_progress_at, row.total = "in_progress", utc_now(), total
            return batch_view(row)

    def book(self, id: str, journal: Journal) -> Batch:
        """Take what the journal has and no ledger counts yet into the usage ledger and into the batch's own counts."""
        with self._database.read() as session:
            row = _row(session, id)
            booked, now = row.booked_bytes, batch_view(row)
        if journal.size == booked:
            return now
        end, sums = journal.size, Sums(journal.records(booked))
        with self._own(id) as (session, row):
            assert row.booked_bytes == booked, "the journal's lock is held"
            book(session, sums.by_place(row.tenant.name, row.created_by))
            row.completed += sums.completed
            row.failed += sums.failed
            for name, tokens in sums.tokens.items():
                setattr(row, name, getattr(row, name) + tokens)
            row.booked_bytes = end
            return batch_view(row)

    def finalize(self, id: str) -> Batch:
        """All lines have run. Does nothing to a batch that is to be cancelled."""
        with self._own(id) as (_, row):
            if row.status == "in_progress":
                row.status, row.finalizing_at = "finalizing", utc_now()
            return batch_view(row)

    def end(
        self,
        id: str,
        status: str,
        *,
        output: OutputFile | None = None,
        error: OutputFile | None = None,
        errors: Sequence[Mapping[str, Any]] = (),
        unrun: int = 0,
    ) -> Batch:
        """`status`: one of ENDED. The files are the tenant's from now on. `unrun`: lines that never ran and count as
        failed."""
        with self._own(id) as (session, row):
            row.status = status
            setattr(row, f"{status}_at", utc_now())
            row.errors = [dict(one) for one in errors] or None
            row.failed += unrun
            row.output_file_id = None if output is None else output.id
            row.error_file_id = None if error is None else error.id
            for file in (output, error):
                if file is not None:
                    session.execute(delete(tables.File).where(tables.File.id == file.id))
                    add_row(
                        session,
                        file.id,
                        row.tenant_id,
                        OUTPUT,
                        file.filename,
                        file.size,
                        row.created_by,
                        file.expires_at,
                    )
            return batch_view(row)

    def clean_up(self) -> None:
        """Remove journals of batches that have ended."""
        with self._database.read() as session:
            wanted = set(session.scalars(select(tables.Batch.id).where(tables.Batch.status.in_(UNFINISHED))))
        for path in self._store.batches.iterdir():
            if path.name not in wanted:
                path.unlink(missing_ok=True)

    @contextmanager
    def _own(self, id: str) -> Iterator[tuple[Session, tables.Batch]]:
        """The row of a batch whose journal the caller holds, in a transaction."""
        with self._database.write() as session:
            yield session, _row(session, id, lock=True)


def _row(session: Session, id: str, lock: bool = False) -> tables.Batch:
    query = select(tables.Batch).where(tables.Batch.id == id)
    return session.scalars(query.with_for_update() if lock else query).one()


def _found(session: Session, id: str, tenant: str, owner: str | None) -> tables.Batch:
    row = find_row(session, tables.Batch, id, tenant, owner)
    if row is None:
        raise UnknownBatch(f"No batch found with id '{id[:80]}'.")
    return row
