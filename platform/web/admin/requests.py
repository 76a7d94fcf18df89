"""The requests page: the latest ones, found by what their answers said in x-request-id."""

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..dependencies import CallerOf, StateOf
from ..metrics import RECENT
from ..units import count_words
from .page import PageRoute, is_fragment, page
from .request_rows import GROUPS, kept_since, matching_requests, request_rows

SECTION: Final = "/requests"
MOST_ROWS: Final = 100

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/requests")
async def index(request: Request, state: StateOf, caller: CallerOf, search: str = "", status: str = "") -> Response:
    """The page, or for htmx the table alone."""
    found = matching_requests(state, caller.tenant, search, status)
    return page(
        request,
        "requests/_table.html" if is_fragment(request) else "requests/page.html",
        SECTION,
        rows=request_rows(state, found[:MOST_ROWS]),
        found=count_words(len(found), "request"),
        hidden=max(0, len(found) - MOST_ROWS),
        search=search,
        group=status,
        groups=GROUPS,
        kept=f"{RECENT:,}",
        since_iso=kept_since(state).isoformat(timespec="seconds"),
    )
