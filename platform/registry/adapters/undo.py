"""Undo: for a minute a change of what an adapter's names mean can be taken back, unless something else changed since.

The row of a change holds the adapter's desired state before and after it. To undo it, the state must still be the one
after; then the one before is put back, all in one transaction.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from ..audit import record
from ..database import tables
from ..database.database import Database
from ..database.tables import DEFAULT_TENANT, utc_now
from ..errors import UndoRefused
from ..revision import bump_revision
from .rows import any_adapter_row
from .views import Adapter, adapter_view

TIME: Final = timedelta(seconds=60)
"""For so long a change can be undone. What a removal leaves on the disk stays longer than that (`sweep.GRACE`)."""

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Undoable:
    """A change that may still be undone. `change` names it; `subject` is what audit rows call it."""

    tenant: str
    adapter: str
    change: str
    action: str
    subject: str
    actor: str
    until: datetime


@contextmanager
def undoable(session: Session, adapter: tables.Adapter, action: str, subject: str, actor: str) -> Iterator[None]:
    """What the block changes of the adapter can be undone; it takes the place of the change before."""
    before = state_of(adapter)
    yield
    session.flush()
    row = session.get(tables.Undo, adapter.id) or tables.Undo(adapter_id=adapter.id)
    row.change, row.at, row.actor = secrets.token_hex(8), utc_now(), actor
    row.action, row.subject = action, subject
    row.before, row.after = before, state_of(adapter)
    session.add(row)


class Undos:
    def __init__(self, database: Database) -> None:
        self._database = database

    def undo(self, name: str, change: str | None = None, *, actor: str, tenant: str = DEFAULT_TENANT) -> Adapter:
        """Take the last change of the adapter back; `change`: only if it is this one. Raises UnknownAdapter, and
        UndoRefused where there is none, it is too long ago, or something has changed since."""
        with self._database.write() as session:
            bump_revision(session)
            adapter = any_adapter_row(session, name, tenant)
            row = session.get(tables.Undo, adapter.id)
            if row is None or utc_now() - row.at > TIME:
                raise UndoRefused(
                    f"'{name}' was not changed in the last minute, so nothing was undone. "
                    "If needed, change it back by hand."
                )
            if change not in (None, row.change) or row.after != state_of(adapter):
                raise UndoRefused(
                    f"'{name}' has been changed again since, so nothing was undone. "
                    "Reload it, and change it back by hand."
                )
            _put_back(adapter, row.before, actor)
            session.delete(row)
            detail = {"undone": row.action, "by": row.actor}
            record(session, actor, "adapter.undo", row.subject, tenant_id=adapter.tenant_id, **detail)
            return adapter_view(adapter)


def load_undoables(session: Session) -> Sequence[Undoable]:
    """Of all tenants, the latest first."""
    query = select(tables.Undo).where(tables.Undo.at > utc_now() - TIME).order_by(tables.Undo.at.desc())
    rows = session.scalars(query.options(joinedload(tables.Undo.adapter).joinedload(tables.Adapter.tenant)))
    return [
        Undoable(
            row.adapter.tenant.name, row.adapter.name, row.change, row.action, row.subject, row.actor, row.at + TIME
        )
        for row in rows
    ]


def state_of(adapter: tables.Adapter) -> State:
    """All of it that may be put back, as JSON."""
    return {
        **_served(adapter),
        "versions": {str(one.number): _served(one) for one in adapter.versions},
        "aliases": {alias.name: _alias_state(alias) for alias in adapter.aliases},
    }


def _served(row: tables.Adapter | tables.AdapterVersion) -> State:
    return {"enabled": row.enabled, "pinned": row.pinned, "removed": row.removed_at is not None}


def _alias_state(row: tables.Alias) -> State:
    return {
        "version": row.version.number,
        "previous": None if row.previous is None else row.previous.number,
        "share_by": row.share_by,
        "rolled_back": row.rolled_back,
        "guard": row.guard,
        "trip": row.trip,
        "updated_at": row.updated_at.isoformat(),
        "candidates": {str(one.version.number): {"weight": one.weight, "shadow": one.shadow} for one in row.candidates},
    }


def _put_back(adapter: tables.Adapter, state: State, actor: str) -> None:
    versions = {str(one.number): one for one in adapter.versions}
    _serve(adapter, state)
    for number, version in versions.items():
        _serve(version, state["versions"][number])
    wanted: Mapping[str, State] = state["aliases"]
    adapter.aliases[:] = [row for row in adapter.aliases if row.name in wanted]
    present = {row.name: row for row in adapter.aliases}
    for name, alias in wanted.items():
        row = present.get(name) or tables.Alias(name=name, candidates=[])
        # A route that did not change keeps its ETag, and its candidates what is known of them.
        if name not in present or _alias_state(row) != alias:
            _route(row, alias, versions, actor)
        if name not in present:
            adapter.aliases.append(row)


def _serve(row: tables.Adapter | tables.AdapterVersion, state: State) -> None:
    row.enabled, row.pinned = state["enabled"], state["pinned"]
    if not state["removed"]:
        row.removed_at = row.removed_by = None


def _route(row: tables.Alias, state: State, versions: Mapping[str, tables.AdapterVersion], actor: str) -> None:
    """Candidates get their shares anew, so a guard judges them by new requests."""
    row.version = versions[str(state["version"])]
    row.previous = None if state["previous"] is None else versions[str(state["previous"])]
    row.share_by, row.rolled_back = state["share_by"], state["rolled_back"]
    row.guard, row.trip = state["guard"], state["trip"]
    present = {str(one.version.number): one for one in row.candidates}
    row.candidates[:] = [
        present.get(number) or tables.AliasCandidate(version=versions[number]) for number in state["candidates"]
    ]
    now = utc_now()
    for one in row.candidates:
        shares = state["candidates"][str(one.version.number)]
        one.weight, one.shadow, one.since = shares["weight"], shares["shadow"], now
    row.updated_at, row.updated_by = now, actor
