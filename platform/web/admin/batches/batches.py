"""The batches page: how far the tenant's batches are, their results, and the button that cancels one."""

import asyncio
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...endpoints.dependencies import CallerOf, StateOf
from ...http.refusals import as_api_error
from ..page import PageRoute, go_to, is_fragment, page
from ..requests.request_rows import key_names
from .batch_rows import GROUPS, batch_row, matching_batches

SECTION: Final = "/batches"
MOST_ROWS: Final = 200
NOTICES: Final = {"cancel": "Cancelled. What has run by now is in the output file."}

router = APIRouter(prefix=SECTION, include_in_schema=False, route_class=PageRoute)


@router.get("")
async def index(
    request: Request, state: StateOf, caller: CallerOf, search: str = "", status: str = "", done: str = ""
) -> Response:
    """The page, or for htmx the table alone."""
    with as_api_error():
        known = await asyncio.to_thread(state.registry.batches.list, caller.tenant, limit=MOST_ROWS)
    names = key_names(state.snapshots, caller)
    found = matching_batches(known.items, search, status, names)
    return page(
        request,
        "batches/_table.html" if is_fragment(request) else "batches/page.html",
        SECTION,
        rows=[batch_row(batch, names) for batch in found],
        any=bool(known.items),
        found=f"{len(found):,} {'batch' if len(found) == 1 else 'batches'}",
        hidden=known.has_more,
        most=MOST_ROWS,
        search=search,
        group=status,
        groups=GROUPS,
        done=NOTICES.get(done),
        days=f"{state.settings.file_days:g}",
    )


@router.post("/{batch_id}/cancel")
async def cancel(request: Request, batch_id: str, state: StateOf, caller: CallerOf) -> Response:
    with as_api_error():
        await asyncio.to_thread(state.registry.batches.cancel, batch_id, **caller.by)
    return go_to(request, f"{SECTION}?done=cancel")
