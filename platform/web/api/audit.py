"""/api/v1/audit: who did what in a tenant, and whether the log is what was written."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query

from loraplex.registry.audit import AuditEntry

from ..dependencies import CallerOf, StateOf, TenantOf
from ..errors import forbidden
from ..permissions import Permission

router = APIRouter(tags=["Audit"])


@router.get("/api/v1/audit")
async def get_audit(
    state: StateOf,
    caller: CallerOf,
    tenant: TenantOf,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
    everyone: bool = False,
    verify: bool = False,
) -> dict[str, Any]:
    """Newest first; `before` is the id of the last row of the page above. `everyone`: of all tenants and the server
    itself, for the operator. Each row says whether it is `intact`; `verify` computes the whole chain."""
    if everyone and not caller.allows(Permission.OPERATE):
        raise forbidden("Only the operator of this server may see the audit log of all tenants. Leave everyone out.")
    audit = state.registry.audit
    rows = await asyncio.to_thread(audit.entries, limit, before, None if everyone else tenant)
    answer: dict[str, Any] = {"data": [entry_json(row) for row in rows]}
    if verify:
        verdict = await asyncio.to_thread(audit.verify)
        answer["chain"] = {"intact": verdict.problem is None}
        if caller.allows(Permission.OPERATE):
            answer["chain"] |= {"rows": verdict.rows, "head": verdict.head, "problem": verdict.problem}
    return answer


def entry_json(entry: AuditEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "at": entry.at.isoformat(),
        "tenant": entry.tenant,
        "actor": entry.actor,
        "action": entry.action,
        "subject": entry.subject,
        "detail": entry.detail,
        "hash": entry.hash,
        "intact": entry.intact,
    }
