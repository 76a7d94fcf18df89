"""The cache page: which adapters are in memory, who leaves next, and the buttons that change it."""

import asyncio
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...endpoints.dependencies import CallerOf, StateOf
from ...units import count_words
from ..aliases.actions import NOTICES, act_on
from ..figures.live_state import residency_of
from ..figures.tenant_memory import tenant_memory
from ..page import PageRoute, go_to, is_fragment, page
from .cache_rows import cache_view
from .what_if import scenarios, used_digests

SECTION: Final = "/cache"
MOST_ROWS: Final = 100

router = APIRouter(prefix=SECTION, include_in_schema=False, route_class=PageRoute)


@router.get("")
async def index(request: Request, state: StateOf, caller: CallerOf, done: str = "") -> Response:
    """The page, or for htmx the part of it that moves."""
    cache, tenants = cache_view(state, caller, MOST_ROWS), tenant_memory(state, caller)
    if is_fragment(request):
        return page(request, "cache/_live.html", SECTION, cache=cache, tenants=tenants)
    residency = residency_of(state, caller)
    return page(
        request, "cache/page.html", SECTION, cache=cache, tenants=tenants, residency=residency, done=NOTICES.get(done)
    )


@router.get("/what-if")
async def what_if(request: Request, state: StateOf) -> Response:
    """A fragment: the latest requests replayed with other sizes of the adapter memory."""
    uses = used_digests(state.metrics.recent)
    found = await asyncio.to_thread(scenarios, state.engine, uses)
    words = count_words(len(uses), "use")
    return page(request, "cache/_what_if.html", SECTION, scenarios=found, uses=words)


@router.post("/{reference}/{action}")
async def act(request: Request, reference: str, action: str, state: StateOf, caller: CallerOf) -> Response:
    await act_on(state, caller, reference, action)
    return go_to(request, f"{SECTION}?done={action}")
