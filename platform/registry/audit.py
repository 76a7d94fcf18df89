"""Who did what, when: written in the transaction of the deed, and chained, so that no row can be changed unseen.

Each row carries the SHA-256 over the hash of the row before and its own canonical content; the head, a row of its own,
says which is the last. Taking the head first makes writers wait for one another, so the chain never forks.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session, aliased, joinedload

from .database import Database
from .tables import AuditHead, AuditRow, Tenant, utc_now

SYSTEM = "system"
"""Actor of what the server does by itself."""
ROOT: Final = "0" * 64
"""Stands before the first row."""
BATCH: Final = 1000
NOT_IN_CHAIN: Final = "The head that was kept is not in the chain: it is another."


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """`intact`: it is what was written after the row before it. `tenant` None: the server itself."""

    id: int
    at: datetime
    tenant: str | None
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]
    hash: str
    intact: bool


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Parts that actor, action and subject must contain, in any case; `first` and `last` are days of UTC, both
    included. Empty: any. `tenant` None: of all."""

    tenant: str | None = None
    actor: str = ""
    action: str = ""
    subject: str = ""
    first: date | None = None
    last: date | None = None


ALL: Final = AuditFilter()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of the whole chain. `problem` says in words what is wrong first; None: nothing. `head` is worth keeping
    elsewhere: who rewrites all rows can make a new chain, but not one with the same head."""

    rows: int
    head: str
    problem: str | None = None


def record(
    session: Session, actor: str, action: str, subject: str, *, tenant_id: int | None = None, **detail: Any
) -> None:
    """Add one row to the running transaction, after bump_generation or hold_changes where there is one."""
    session.flush()
    head = session.scalars(select(AuditHead).with_for_update().execution_options(populate_existing=True)).one()
    row = AuditRow(
        id=head.last_id + 1,
        at=utc_now(),
        actor=actor,
        action=action,
        subject=subject,
        tenant_id=tenant_id,
        detail=json.loads(json.dumps(detail)),
    )
    row.hash = chain_hash(head.hash, row)
    head.last_id, head.hash = row.id, row.hash
    session.add(row)
    session.flush()


def chain_hash(before: str, row: AuditRow) -> str:
    """What the row's hash must be after a row with the hash `before`."""
    content = {
        "id": row.id,
        "at": row.at.astimezone(UTC).isoformat(timespec="microseconds"),
        "tenant_id": row.tenant_id,
        "actor": row.actor,
        "action": row.action,
        "subject": row.subject,
        "detail": row.detail,
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(f"{before}\n{canonical}".encode()).hexdigest()


class AuditLog:
    def __init__(self, database: Database) -> None:
        self._database = database

    def entries(self, limit: int = 100, before: int | None = None, tenant: str | None = None) -> Sequence[AuditEntry]:
        """Newest first; `before` is the id of the last entry of the page above; `tenant` None: of all."""
        return self.search(AuditFilter(tenant), limit, before)

    def search(self, wanted: AuditFilter, limit: int = 100, before: int | None = None) -> Sequence[AuditEntry]:
        """Newest first, as `entries`, those that are wanted."""
        query = _with_hash_before().where(*_conditions(wanted)).order_by(AuditRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(AuditRow.id < before)
        with self._database.read() as session:
            return [_entry(row, hash_before or ROOT) for row, hash_before in session.execute(query)]

    def get(self, id: int, tenant: str | None = None) -> AuditEntry | None:
        """None: there is no such entry, or it is another tenant's."""
        query = _with_hash_before().where(AuditRow.id == id, *_conditions(AuditFilter(tenant)))
        with self._database.read() as session:
            found = session.execute(query).one_or_none()
            return None if found is None else _entry(found[0], found[1] or ROOT)

    def head(self) -> int:
        """The number of the last entry of all."""
        with self._database.read() as session:
            return session.scalars(select(AuditHead.last_id)).one()

    def verify(self, kept: str | None = None) -> Verdict:
        """Compute the whole chain anew, row by row. `kept`: an earlier head, which must be in it."""
        with self._database.read() as session:
            head = session.scalars(select(AuditHead)).one()
            rows, last_id, last, found = 0, 0, ROOT, kept in (None, ROOT)
            for row in session.scalars(select(AuditRow).order_by(AuditRow.id).execution_options(yield_per=BATCH)):
                expected = chain_hash(last, row)
                if row.hash != expected:
                    problem = f"Row {row.id} is not what was written after row {last_id}: one was changed or removed."
                    return Verdict(rows, head.hash, problem)
                rows, last_id, last, found = rows + 1, row.id, row.hash, found or row.hash == kept
        if (last_id, last) != (head.last_id, head.hash):
            return Verdict(rows, head.hash, f"The chain ends at row {last_id}, but row {head.last_id} was written.")
        return Verdict(rows, head.hash, None if found else NOT_IN_CHAIN)

    def has(self, hash: str) -> bool:
        """Whether a row carries it, or nothing was before the first."""
        with self._database.read() as session:
            query = select(AuditRow.id).where(AuditRow.hash == hash).limit(1)
            return hash == ROOT or session.scalar(query) is not None


def _with_hash_before() -> Select[AuditRow, str]:
    """Rows, each with the hash of the row before."""
    previous = aliased(AuditRow)
    query = select(AuditRow, previous.hash).outerjoin(previous, previous.id == _id_before())
    return query.options(joinedload(AuditRow.tenant))


def _conditions(wanted: AuditFilter) -> list[ColumnElement[bool]]:
    columns = ((AuditRow.actor, wanted.actor), (AuditRow.action, wanted.action), (AuditRow.subject, wanted.subject))
    conditions: list[ColumnElement[bool]] = [
        column.icontains(part, autoescape=True) for column, part in columns if part
    ]
    if wanted.tenant is not None:
        tenant = select(Tenant.id).where(Tenant.name == wanted.tenant).scalar_subquery()
        conditions.append(AuditRow.tenant_id == tenant)
    if wanted.first is not None:
        conditions.append(AuditRow.at >= datetime.combine(wanted.first, time(), UTC))
    if wanted.last is not None:
        conditions.append(AuditRow.at <= datetime.combine(wanted.last, time.max, UTC))
    return conditions


def _id_before() -> Any:
    """Of the row before; ids of old databases may have gaps."""
    older = aliased(AuditRow)
    return (
        select(older.id).where(older.id < AuditRow.id).order_by(older.id.desc()).limit(1).correlate(AuditRow)
    ).scalar_subquery()


def _entry(row: AuditRow, hash_before: str) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        at=row.at,
        tenant=None if row.tenant is None else row.tenant.name,
        actor=row.actor,
        action=row.action,
        subject=row.subject,
        detail=row.detail,
        hash=row.hash,
        intact=row.hash == chain_hash(hash_before, row),
    )
