"""Rows of the audit log that are asked for in texts: of a query, or of options."""

from datetime import date

from loraplex.registry.audit import AuditFilter
from loraplex.registry.errors import InvalidQuery


def audit_query(scope: str | None, actor: str, action: str, subject: str, first: str, to: str) -> AuditFilter:
    """`scope`: a tenant; None: everybody's. Raises InvalidQuery."""
    parts = (_part(actor, "actor"), _part(action, "action"), _part(subject, "subject"))
    return AuditFilter(scope, *parts, _day(first, "from"), _day(to, "to"))


def _part(text: str, field: str) -> str:
    """No name has an unprintable character, and PostgreSQL takes no zero byte."""
    if not text.isprintable():
        raise InvalidQuery(field, f"{field} has a character that names cannot contain.")
    return text.strip()


def _day(text: str, field: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise InvalidQuery(field, f"{field} must be a day such as 2026-11-22; got {text[:40]!a}.") from None
