"""StoredResponses: answers of the Responses API, kept within bounds for those that follow them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, delete, func, literal, select, update
from sqlalchemy.orm import Session

from .database.database import Database
from .database.tables import StoredResponse, Tenant, utc_now
from .errors import UnknownResponse

ID: Final = re.compile(r"resp_[0-9a-f]{32}", re.ASCII)
CHUNK: Final = 500
"""Rows that one statement removes."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Whose responses are meant: the tenant's, or of these one actor's alone."""

    tenant: str
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """`items` and `document` are JSON (`tables/responses.py`)."""

    id: str
    items: bytes
    document: bytes
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of each tenant; `age`: since the last use."""

    age: timedelta
    most: int
    most_bytes: int


class StoredResponses:
    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, tenant: str, actor: str, response: KeptResponse, previous: Sequence[str] = ()) -> None:
        """`previous`: ids of those that it follows, the first one first. They are used by that. One with the same id is
        replaced: that of a line of a batch that ran again."""
        with self._database.write() as session:
            row = StoredResponse(
                id=response.id,
                tenant_id=session.scalars(select(Tenant.id).where(Tenant.name == tenant)).one(),
                actor=actor,
                previous_id=previous[-1] if previous else None,
                items=response.items,
                document=response.document,
                size=len(response.items) + len(response.document),
                created_at=response.created_at,
                used_at=response.created_at,
            )
            session.merge(row)
            used = update(StoredResponse).where(StoredResponse.id.in_(previous))
            session.execute(used.values(used_at=response.created_at))

    def get(self, id: str, reader: Reader) -> KeptResponse:
        """Raises UnknownResponse."""
        with self._database.read() as session:
            found = select(StoredResponse).where(StoredResponse.id == id, _is_of(reader))
            row = session.scalars(found).one_or_none() if ID.fullmatch(id) else None
        if row is None:
            raise UnknownResponse(f"Response with id '{id[:80]}' not found.")
        return _kept(row)

    def conversation(self, id: str, reader: Reader, most: int, most_bytes: int) -> Sequence[KeptResponse]:
        """It and all that it follows, the first one first. Raises UnknownResponse where one of them is gone, and
        ValueError where they are more than `most`, or have more bytes."""
        with self._database.read() as session:
            rows = _chain(session, id, reader, most) if ID.fullmatch(id) else []
            if not rows or (len(rows) <= most and rows[-1].previous_id is not None):
                gone = id if not rows else rows[-1].previous_id
                raise UnknownResponse(f"Previous response with id '{str(gone)[:80]}' not found.")
            if len(rows) > most or sum(row.size for row in rows) > most_bytes:
                raise ValueError(f"the conversation has more than {most} responses or {most_bytes:,} bytes")
            found = select(StoredResponse).where(StoredResponse.id.in_([row.id for row in rows]))
            by_id = {row.id: _kept(row) for row in session.scalars(found)}
        return [by_id[row.id] for row in reversed(rows)]

    def delete(self, id: str, reader: Reader) -> None:
        """Raises UnknownResponse."""
        self.get(id, reader)
        with self._database.write() as session:
            session.execute(delete(StoredResponse).where(StoredResponse.id == id))

    def prune(self, bounds: Bounds) -> int:
        """Remove what is too old, and of each tenant what is too much, the longest unused first; how many."""
        tenant = StoredResponse.tenant_id
        number = func.row_number().over(partition_by=tenant, order_by=_LATEST_FIRST).label("number")
        sizes = func.sum(StoredResponse.size)
        size = sizes.over(partition_by=tenant, order_by=_LATEST_FIRST, rows=(None, 0)).label("size")
        ranked = select(StoredResponse.id, StoredResponse.used_at, number, size).subquery()
        too_old = ranked.c.used_at < utc_now() - bounds.age
        too_much = (ranked.c.number > bounds.most) | (ranked.c.size > bounds.most_bytes)
        with self._database.read() as session:
            ids = session.scalars(select(ranked.c.id).where(too_old | too_much)).all()
        for first in range(0, len(ids), CHUNK):
            with self._database.write() as session:
                session.execute(delete(StoredResponse).where(StoredResponse.id.in_(ids[first : first + CHUNK])))
        return len(ids)


_LATEST_FIRST: Final = (StoredResponse.used_at.desc(), StoredResponse.created_at, StoredResponse.id)
"""A response and those that it follows were used at once: the last of them goes first."""


def _chain(session: Session, id: str, reader: Reader, most: int) -> Sequence[Any]:
    """Id, previous id and size, from the last response to the first, one more than `most` at most."""
    columns = (StoredResponse.id, StoredResponse.previous_id, StoredResponse.size)
    last = select(*columns, literal(1).label("depth")).where(StoredResponse.id == id, _is_of(reader))
    chain = last.cte("chain", recursive=True)
    before = select(*columns, chain.c.depth + 1).join(chain, StoredResponse.id == chain.c.previous_id)
    whole = chain.union_all(before.where(chain.c.depth <= most, _is_of(reader)))
    return session.execute(select(whole).order_by(whole.c.depth)).all()


def _is_of(reader: Reader) -> ColumnElement[bool]:
    tenant = select(Tenant.id).where(Tenant.name == reader.tenant).scalar_subquery()
    own = StoredResponse.tenant_id == tenant
    return own if reader.actor is None else own & (StoredResponse.actor == reader.actor)


def _kept(row: StoredResponse) -> KeptResponse:
    return KeptResponse(row.id, row.items, row.document, row.created_at)
