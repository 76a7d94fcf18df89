"""Who did what, when. Written in the same transaction as the deed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from .database import Database
from .tables import AuditRow

SYSTEM = "system"
"""Actor of what the server does by itself."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]


def record(
    session: Session, actor: str, action: str, subject: str, *, tenant_id: int | None = None, **detail: Any
) -> None:
    """Add one row to the running transaction."""
    session.add(AuditRow(actor=actor, action=action, subject=subject, tenant_id=tenant_id, detail=detail))


class AuditLog:
    def __init__(self, database: Database) -> None:
        self._database = database

    def entries(self, limit: int = 100, before: int | None = None) -> Sequence[AuditEntry]:
        """Newest first; `before` is the id of the last entry of the page above."""
        query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(AuditRow.id < before)
        with self._database.read() as session:
            return [_entry(row) for row in session.scalars(query)]


def _entry(row: AuditRow) -> AuditEntry:
    return AuditEntry(row.id, row.at, row.actor, row.action, row.subject, row.detail)
