"""The overview, and the stream of live state behind every page."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import StreamingResponse
from starlette.responses import Response

from ..api.certification import BASE, request_certificate, standing_of
from ..dependencies import CallerOf, StateOf
from ..permissions import Permission
from ..state import State
from .attention import Item, attention
from .cache_history import CacheHistory
from .certificate_view import OF_THE_BASE, certificate_view
from .live_state import live_state
from .page import PageRoute, go_to, page
from .traffic import Traffic

LIVE_SECONDS: Final = 1.0
HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class Live:
    """The live document of each tenant, made once a second however many pages watch."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._traffic = Traffic()
        self.cache = CacheHistory()
        self._documents: dict[str, tuple[float, bytes]] = {}
        """tenant -> when it was made, and the document."""

    async def watch(self) -> None:
        """Note the traffic once a second, for ever."""
        while True:
            status = self._state.engine.status
            generated = None if status is None else status.generation_tokens
            self._traffic.tick(reversed(self._state.metrics.recent), generated)
            self.cache.tick(status)
            await asyncio.sleep(LIVE_SECONDS)

    def attention(self, tenant: str) -> list[Item]:
        return attention(self._state, self._traffic, self.cache, tenant)

    def document(self, tenant: str) -> bytes:
        now = time.monotonic()
        made, document = self._documents.get(tenant, (float("-inf"), b""))
        if now - made > LIVE_SECONDS / 2:
            document = msgspec.json.encode(live_state(self._state, self._traffic, self.cache, tenant))
            self._documents[tenant] = now, document
        return document


@contextlib.asynccontextmanager
async def watching(app: FastAPI) -> AsyncIterator[None]:
    """Lifespan of the dashboard: `app.state.live` watches the traffic, also while nobody looks."""
    app.state.live = Live(app.state.loraplex)
    task = asyncio.create_task(app.state.live.watch())
    yield
    task.cancel()


router = APIRouter(include_in_schema=False, route_class=PageRoute, lifespan=watching)


@router.get("/")
async def overview(request: Request, state: StateOf, caller: CallerOf) -> Response:
    may_ask = caller.allows(Permission.OPERATE)
    view = certificate_view(await standing_of(state, BASE), OF_THE_BASE if may_ask else replace(OF_THE_BASE, ask=""))
    items = request.app.state.live.attention(caller.tenant)
    return page(request, "overview.html", "/", attention=items, certificate=view)


@router.post("/certify")
async def certify_base(request: Request, state: StateOf, caller: CallerOf) -> Response:
    await request_certificate(state, caller, BASE, anew=True)
    return go_to(request, "/")


@router.get("/dashboard/state")
async def current(request: Request, caller: CallerOf) -> Response:
    return Response(request.app.state.live.document(caller.tenant), media_type="application/json")


@router.get("/dashboard/live")
async def live(request: Request, state: StateOf, caller: CallerOf) -> StreamingResponse:
    documents = _documents(state, request.app.state.live, caller.tenant)
    return StreamingResponse(documents, media_type="text/event-stream", headers=HEADERS)


async def _documents(state: State, live: Live, tenant: str) -> AsyncIterator[bytes]:
    while not state.stopping.is_set():
        yield b"data: " + live.document(tenant) + b"\n\n"
        await asyncio.sleep(seconds_to_next())


def seconds_to_next() -> float:
    """Half of LIVE_SECONDS or more: all streams wake at the same moment, so that one document serves them."""
    seconds = LIVE_SECONDS - time.monotonic() % LIVE_SECONDS
    return seconds if seconds >= LIVE_SECONDS / 2 else seconds + LIVE_SECONDS
