"""One page of a tenant's rows, after the row with a given id."""

from typing import TypeVar

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session, joinedload

from ..access.tenants import tenant_id
from ..database import tables

Row = TypeVar("Row", tables.File, tables.Batch)


def find_row(session: Session, table: type[Row], id: str, tenant: str, owner: str | None) -> Row | None:
    """`owner`: the actor whose rows alone exist; None: all of the tenant."""
    if not (id.isascii() and id.isprintable()):
        return None  # PostgreSQL has no NUL in texts
    return session.scalars(_of(session, table, tenant, owner).where(table.id == id)).one_or_none()


def page_of(
    session: Session,
    table: type[Row],
    tenant: str,
    owner: str | None,
    after: Row | None,
    limit: int,
    newest_first: bool,
    *wanted: ColumnElement[bool],
) -> tuple[list[Row], bool]:
    """Rows, and whether there are more behind them."""
    query = _of(session, table, tenant, owner).where(*wanted)
    if after is not None:
        query = query.where(table.number < after.number if newest_first else table.number > after.number)
    order = table.number.desc() if newest_first else table.number
    rows = list(session.scalars(query.order_by(order).limit(limit + 1)))
    return rows[:limit], len(rows) > limit


def _of(session: Session, table: type[Row], tenant: str, owner: str | None) -> Select[Row]:
    query = select(table).where(table.tenant_id == tenant_id(session, tenant)).options(joinedload(table.tenant))
    return query if owner is None else query.where(table.created_by == owner)
