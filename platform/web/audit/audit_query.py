"""Rows of the audit log that are asked for in texts: of a query, or of options."""

from collections.abc import Mapping
from datetime import date

from loraplex.registry.audit import AuditFilter
from loraplex.registry.errors import InvalidQuery


def audit_query(scope: str | None, asked: Mapping[str, str]) -> AuditFilter:
    """`scope`: a tenant; None: everybody's. `asked`: texts of actor, action, subject, from and to; those that are
    absent ask for any. Raises InvalidQuery."""
    actor, action, subject = (_part(asked.get(field, ""), field) for field in ("actor", "action", "subject"))
    first, last = (_day(asked.get(field, ""), field) for field in ("from", "to"))
    return AuditFilter(scope, actor, action, subject, first, last)


def _part(text: str, field: str) -> str:
    """No name has an unprintable character, and PostgreSQL takes no zero byte."""
    if not text.isprintable():
        raise InvalidQuery(f"{field} has a character that names cannot contain.", field)
    return text.strip()


def _day(text: str, field: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise InvalidQuery(f"{field} must be a day such as 2026-11-22; got {text[:40]!a}.", field) from None
