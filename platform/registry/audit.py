"""Who did what, when: written in the transaction of the deed, and chained, so that no row can be changed unseen.

Each row carries the SHA-256 over the hash of the row before and its own canonical content; the head, a row of its own,
says which is the last. Taking the head first makes writers wait for one another, so the chain never forks.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, func, literal, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased, joinedload

from .database.database import Database
from .database.tables import ApiKey, AuditHead, AuditRow, Tenant, utc_now

SYSTEM = "system"
"""Actor of what the server does by itself."""
ROOT: Final = "0" * 64
"""Stands before the first row."""
KEY: Final = literal("key:")
FOREIGN_KEY: Final = Tenant.name + "/key:" + ApiKey.prefix
"""How rows of one tenant name a key of another."""
BATCH: Final = 1000
NOT_IN_CHAIN: Final = "The given head is not in this chain."


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """`intact`: it is what was written after the row before it. `tenant` None: the server itself."""

    id: int
    """Within the tenant whose rows were asked for; where all were, of all."""
    at: datetime
    tenant: str | None
    actor: str
    actor_name: str
    """What people call the key that did it; empty where no key did, or one that who asks may not see."""
    action: str
    subject: str
    detail: dict[str, Any]
    hash: str
    """Empty for all but the operator: with two of them in a row, the ids of all tenants could be worked out."""
    intact: bool


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Parts that actor, action and subject must contain, in any case; of keys also the label. `first` and `last` are
    days of UTC, both included. Empty: any. `tenant` None: of all. `operator`: whoever asks operates the server."""

    tenant: str | None = None
    actor: str = ""
    action: str = ""
    subject: str = ""
    first: date | None = None
    last: date | None = None
    operator: bool = True


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
    """Add one row to the running transaction, after bump_revision or hold_changes where there is one."""
    session.flush()
    head = session.scalars(select(AuditHead).with_for_update().execution_options(populate_existing=True)).one()
    row = AuditRow(
        id=head.last_id + 1,
        at=utc_now(),
        actor=actor,
        action=action,
        subject=subject,
        tenant_id=tenant_id,
        number=_next_number(session, tenant_id),
        detail=json.loads(json.dumps(detail)),
    )
    row.hash = chain_hash(head.hash, row)
    head.last_id, head.hash = row.id, row.hash
    session.add(row)
    session.flush()


def _next_number(session: Session, tenant_id: int | None) -> int:
    of_tenant = AuditRow.tenant_id.is_(None) if tenant_id is None else AuditRow.tenant_id == tenant_id
    return (session.scalar(select(func.max(AuditRow.number)).where(of_tenant)) or 0) + 1


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
        """Newest first, as the operator sees them; `before` is the id of the last entry of the page above; `tenant`
        None: of all."""
        return self.search(AuditFilter(tenant), limit, before)

    def search(self, wanted: AuditFilter, limit: int = 100, before: int | None = None) -> Sequence[AuditEntry]:
        """Newest first, as `entries`, those that are wanted."""
        query = _with_hash_before().where(*_conditions(wanted)).order_by(AuditRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(_id_column(wanted) < before)
        with self._database.read() as session:
            return _entries(session, query, wanted)

    def get(self, id: int, wanted: AuditFilter = ALL) -> AuditEntry | None:
        """None: there is no such entry among those that are wanted."""
        query = _with_hash_before().where(_id_column(wanted) == id, *_conditions(wanted))
        with self._database.read() as session:
            return next(iter(_entries(session, query, wanted)), None)

    def note(self, actor: str, action: str, subject: str, tenant: str | None = None, **detail: Any) -> None:
        """Of what changes no row of ours; `tenant` None: of the server itself. Blocks."""
        with self._database.write() as session:
            row = None if tenant is None else session.scalar(select(Tenant.id).where(Tenant.name == tenant))
            record(session, actor, action, subject, tenant_id=row, **detail)

    def head(self) -> int:
        """The number of the last entry of all."""
        with self._database.read() as session:
            return session.scalars(select(AuditHead.last_id)).one()

    def verify(self, kept: str | None = None) -> Verdict:
        """Compute the whole chain anew, row by row. `kept`: an earlier head, which must be in it."""
        with self._database.read() as session:
            head = session.scalars(select(AuditHead)).one()
            rows, last_id, last, found = 0, 0, ROOT, kept in (None, ROOT)
            numbers: Counter[int | None] = Counter()
            for row in session.scalars(select(AuditRow).order_by(AuditRow.id).execution_options(yield_per=BATCH)):
                expected = chain_hash(last, row)
                if row.hash != expected:
                    problem = f"Row {row.id} does not follow row {last_id}: a row was changed or removed."
                    return Verdict(rows, head.hash, problem)
                numbers[row.tenant_id] += 1
                if row.number != numbers[row.tenant_id]:
                    return Verdict(rows, head.hash, f"Row {row.id} does not have its original number.")
                rows, last_id, last, found = rows + 1, row.id, row.hash, found or row.hash == kept
        if (last_id, last) != (head.last_id, head.hash):
            return Verdict(rows, head.hash, f"The chain ends at row {last_id}, but should end at row {head.last_id}.")
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
    conditions: list[ColumnElement[bool]] = []
    if wanted.action:
        conditions.append(AuditRow.action.icontains(wanted.action, autoescape=True))
    for column, part in ((AuditRow.actor, wanted.actor), (AuditRow.subject, wanted.subject)):
        if part:
            labelled = _keys(wanted).where(ApiKey.name.icontains(part, autoescape=True))
            own, foreign = labelled.with_only_columns(KEY + ApiKey.prefix), labelled.with_only_columns(FOREIGN_KEY)
            conditions.append(or_(column.icontains(part, autoescape=True), column.in_(own), column.in_(foreign)))
    if wanted.tenant is not None:
        tenant = select(Tenant.id).where(Tenant.name == wanted.tenant).scalar_subquery()
        conditions.append(AuditRow.tenant_id == tenant)
    if wanted.first is not None:
        conditions.append(AuditRow.at >= datetime.combine(wanted.first, time(), UTC))
    if wanted.last is not None:
        conditions.append(AuditRow.at <= datetime.combine(wanted.last, time.max, UTC))
    return conditions


def _id_column(wanted: AuditFilter) -> InstrumentedAttribute[int]:
    return AuditRow.id if wanted.tenant is None else AuditRow.number


def _keys(wanted: AuditFilter) -> Select[str, str]:
    """Prefixes and labels of the keys that who asks may see."""
    query = select(ApiKey.prefix, ApiKey.name).join(Tenant, Tenant.id == ApiKey.tenant_id)
    return query if wanted.operator else query.where(Tenant.name == wanted.tenant)


def _entries(session: Session, query: Select[AuditRow, str], wanted: AuditFilter) -> list[AuditEntry]:
    rows = [(row, before or ROOT) for row, before in session.execute(query)]
    prefixes = {_key_of(row.actor) for row, _ in rows} - {""}
    names = dict(session.execute(_keys(wanted).where(ApiKey.prefix.in_(prefixes))).all()) if prefixes else {}
    return [_entry(row, before, names.get(_key_of(row.actor), ""), wanted) for row, before in rows]


def _key_of(actor: str) -> str:
    """The prefix of the key that it is; empty: it is none."""
    kind, _, prefix = actor.rpartition("/")[2].partition(":")
    return prefix if kind == "key" else ""


def _id_before() -> Any:
    """Of the row before; ids of old databases may have gaps."""
    older = aliased(AuditRow)
    return (
        select(older.id).where(older.id < AuditRow.id).order_by(older.id.desc()).limit(1).correlate(AuditRow)
    ).scalar_subquery()


def _entry(row: AuditRow, hash_before: str, actor_name: str, wanted: AuditFilter) -> AuditEntry:
    return AuditEntry(
        id=row.id if wanted.tenant is None else row.number,
        at=row.at,
        tenant=None if row.tenant is None else row.tenant.name,
        actor=row.actor,
        actor_name=actor_name,
        action=row.action,
        subject=row.subject,
        detail=row.detail,
        hash=row.hash if wanted.operator else "",
        intact=row.hash == chain_hash(hash_before, row),
    )
