"""/api/v1/audit: who did what in a tenant, and whether the log is what was written."""

import asyncio
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from loraplex.registry.audit import NOT_IN_CHAIN

from ...access.permissions import Permission
from ...endpoints.dependencies import CallerOf, RegistryOf, StateOf
from ..answers import chain_json, entry_json
from ..audit_file import Format
from .audit_export import export
from .audit_filter import Wanted

router = APIRouter(tags=["Audit"])


@router.get("/api/v1/audit")
async def get_audit(
    state: StateOf,
    caller: CallerOf,
    wanted: Wanted,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
    verify: bool = False,
    head: Annotated[str, Query(pattern="^([0-9a-f]{64})?$")] = "",
) -> dict[str, Any]:
    """Newest first; `before` is the id of the last row of the page above. `everyone`: of all tenants and the server
    itself, for the operator. `actor`, `action` and `subject` are parts that these must contain, `from` and `to` days of
    UTC, both included. Each row says whether it is `intact`; `verify` computes the whole chain, or tells what that said
    in the last seconds; `head`, one that was kept, must be in it."""
    rows = await asyncio.to_thread(state.registry.audit.search, wanted, limit, before)
    answer: dict[str, Any] = {"data": [entry_json(row) for row in rows]}
    if verify:
        verdict = await state.chain.verdict()
        if head and verdict.problem is None and not await asyncio.to_thread(state.registry.audit.has, head):
            verdict = replace(verdict, problem=NOT_IN_CHAIN)
        chain = chain_json(verdict)
        answer["chain"] = chain if caller.allows(Permission.OPERATE) else {"intact": chain["intact"]}
    return answer


@router.get("/api/v1/audit/export")
async def export_audit(registry: RegistryOf, wanted: Wanted, format: Format = "csv") -> Response:
    """All rows that are wanted, by the same filters, newest first, as a file."""
    return export(registry.audit, wanted, format)
