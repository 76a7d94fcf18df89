"""Which rows of the audit log are asked for, by the API's query and by the page's."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Query

from loraplex.registry.audit import AuditFilter
from loraplex.registry.errors import InvalidQuery

from ...access.caller import Caller
from ...access.permissions import Permission
from ...audit.audit_query import audit_query
from ...endpoints.dependencies import CallerOf, FirstDay
from ...http.errors import forbidden, invalid

Part = Annotated[str, Query(max_length=255)]


def scope_of(caller: Caller, everyone: bool) -> str | None:
    """Whose rows; None: everybody's, for the operator. Raises ApiError."""
    if everyone and not caller.allows(Permission.OPERATE):
        raise forbidden("Only the operator can see the audit log of all tenants. Leave out everyone.")
    return None if everyone else caller.tenant


def filter_of(caller: Caller, everyone: bool, asked: Mapping[str, str]) -> AuditFilter:
    """From the texts of a query. Raises ApiError."""
    scope = scope_of(caller, everyone)
    try:
        return replace(audit_query(scope, asked), operator=caller.allows(Permission.OPERATE))
    except InvalidQuery as error:
        raise invalid(str(error), error.field) from None


async def _asked(
    actor: Part = "", action: Part = "", subject: Part = "", first: FirstDay = "", to: str = ""
) -> Mapping[str, str]:
    return {"actor": actor, "action": action, "subject": subject, "from": first, "to": to}


AskedOf = Annotated[Mapping[str, str], Depends(_asked)]


async def _wanted(caller: CallerOf, asked: AskedOf, everyone: bool = False) -> AuditFilter:
    return filter_of(caller, everyone, asked)


Wanted = Annotated[AuditFilter, Depends(_wanted)]
