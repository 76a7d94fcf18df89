"""The requests page: the latest ones, refused ones too, found by what their answers said in x-request-id."""

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...endpoints.dependencies import CallerOf, StateOf
from ...units import count_words
from ..page import PageRoute, is_fragment, page
from .request_rows import GROUPS, kept_since, matching_requests, request_rows

SECTION: Final = "/requests"
MOST_ROWS: Final = 100

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/requests")
async def index(
    request: Request, state: StateOf, caller: CallerOf, search: str = "", status: str = "", order: str = ""
) -> Response:
    """The page, or for htmx the table alone. Who oversees the server sees the requests of all tenants."""
    found = matching_requests(state, caller, search, status, order)
    return page(
        request,
        "requests/_table.html" if is_fragment(request) else "requests/page.html",
        SECTION,
        rows=request_rows(state, caller, found[:MOST_ROWS]),
        everyone=caller.oversees and len(state.snapshots.current.tenants) > 1,
        found=count_words(len(found), "request"),
        hidden=max(0, len(found) - MOST_ROWS),
        search=search,
        group=status,
        order=order,
        groups=GROUPS,
        since_iso=kept_since(state.metrics, caller).isoformat(timespec="seconds"),
    )
