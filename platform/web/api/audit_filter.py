"""Which rows of the audit log are asked for, by the API's query and by the page's."""

from datetime import date
from typing import Annotated

from fastapi import Depends, Query

from loraplex.registry.audit import AuditFilter

from ..auth import Caller
from ..dependencies import CallerOf, TenantOf
from ..errors import forbidden, invalid
from ..permissions import Permission

Part = Annotated[str, Query(max_length=255)]
First = Annotated[str, Query(alias="from")]


def scope_of(caller: Caller, tenant: str, everyone: bool) -> str | None:
    """Whose rows; None: everybody's, for the operator. Raises ApiError."""
    if everyone and not caller.allows(Permission.OPERATE):
        raise forbidden("Only the operator of this server may see the audit log of all tenants. Leave everyone out.")
    return None if everyone else tenant


def filter_of(scope: str | None, actor: str, action: str, subject: str, first: str, to: str) -> AuditFilter:
    """From the texts of a query. Raises ApiError."""
    parts = (_part(actor, "actor"), _part(action, "action"), _part(subject, "subject"))
    return AuditFilter(scope, *parts, _day(first, "from"), _day(to, "to"))


def wanted_rows(
    caller: CallerOf,
    tenant: TenantOf,
    actor: Part = "",
    action: Part = "",
    subject: Part = "",
    first: First = "",
    to: str = "",
    everyone: bool = False,
) -> AuditFilter:
    return filter_of(scope_of(caller, tenant, everyone), actor, action, subject, first, to)


def _part(text: str, field: str) -> str:
    """No name has an unprintable character, and PostgreSQL takes no zero byte."""
    if not text.isprintable():
        raise invalid(f"{field} has a character that no name has.", field)
    return text.strip()


def _day(text: str, field: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise invalid(f"{field} must be a day such as 2026-11-22; got {text[:40]!a}.", field) from None


Wanted = Annotated[AuditFilter, Depends(wanted_rows)]
