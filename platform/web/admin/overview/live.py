"""The overview, and the stream of live state behind every page."""

import asyncio
import contextlib
import time
from asyncio import Event
from collections.abc import AsyncIterator
from itertools import takewhile
from typing import Final

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import StreamingResponse
from starlette.responses import Response

from ...access.caller import Caller
from ...api.adapters.certification import BASE, request_certificate, standing_of
from ...endpoints.dependencies import CallerOf, StateOf
from ...state import State
from ..adapters.certificate_view import certificate_view
from ..figures.cache_history import CacheHistory
from ..figures.live_state import live_state, residency_of
from ..figures.traffic import Traffic
from ..page import PageRoute, go_to, page
from .attention import Item, attention, for_caller
from .front_door import FrontDoorRoute

LIVE_SECONDS: Final = 1.0
HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class Live:
    """The live documents, each made once a second however many pages watch: one of a tenant for all in it who may do
    the same."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._traffic = Traffic()
        self._tenants: dict[str, Traffic] = {}
        """Of each that has asked for anything since the start, its own."""
        self.cache = CacheHistory()
        self._documents: dict[tuple[str, frozenset[str]], tuple[float, bytes]] = {}
        """tenant and permissions -> when it was made, and the document."""

    async def watch(self) -> None:
        """Note the traffic once a second, for ever."""
        while True:
            self.note()
            await asyncio.sleep(LIVE_SECONDS)

    def note(self) -> None:
        """What has happened since the last time."""
        status, recent = self._state.engine.status, self._state.metrics.recent
        generated = None if status is None else status.generation_tokens
        self.cache.tick(status)
        new = takewhile(lambda request: request.at > self._traffic.until, reversed(recent))
        for tenant in {request.tenant for request in new} - self._tenants.keys():
            self._tenants[tenant] = Traffic(tenant)
        for traffic in (self._traffic, *self._tenants.values()):
            traffic.tick(reversed(recent), generated)

    def _traffic_for(self, caller: Caller) -> Traffic:
        """Who operates the server sees all of it."""
        return self._traffic if caller.oversees else self._tenants.get(caller.tenant, Traffic())

    def attention(self, caller: Caller) -> list[Item]:
        return for_caller(attention(self._state, self._traffic_for(caller), self.cache, caller), caller)

    def document(self, caller: Caller) -> bytes:
        now, watchers = time.monotonic(), (caller.tenant, caller.permissions)
        made, document = self._documents.get(watchers, (float("-inf"), b""))
        if now - made > LIVE_SECONDS / 2:
            state = live_state(self._state, self._traffic_for(caller), self.cache, caller)
            document = msgspec.json.encode(state | {"attention": self.attention(caller)})
            self._documents[watchers] = now, document
        return document


@contextlib.asynccontextmanager
async def watching(app: FastAPI) -> AsyncIterator[None]:
    """Lifespan of the dashboard: `app.state.live` watches the traffic, also while nobody looks."""
    app.state.live = Live(app.state.loraplex)
    task = asyncio.create_task(app.state.live.watch())
    yield
    task.cancel()


router = APIRouter(include_in_schema=False, route_class=PageRoute, lifespan=watching)
front = APIRouter(include_in_schema=False, route_class=FrontDoorRoute)


@front.get("/")
async def overview(request: Request, state: StateOf, caller: CallerOf) -> Response:
    view = certificate_view(await standing_of(state, BASE))
    items = request.app.state.live.attention(caller)
    residency = residency_of(state, caller)
    return page(request, "overview.html", "/", attention=items, residency=residency, certificate=view)


@router.post("/certify")
async def certify_base(request: Request, state: StateOf, caller: CallerOf) -> Response:
    await request_certificate(state, caller, BASE, anew=True)
    return go_to(request, "/")


@router.get("/dashboard/state")
async def current(request: Request, caller: CallerOf) -> Response:
    return Response(request.app.state.live.document(caller), media_type="application/json")


@router.get("/dashboard/live")
async def live(request: Request, state: StateOf, caller: CallerOf) -> StreamingResponse:
    documents = _documents(state.stopping, request.app.state.live, caller)
    return StreamingResponse(documents, media_type="text/event-stream", headers=HEADERS)


async def _documents(stopping: Event, live: Live, caller: Caller) -> AsyncIterator[bytes]:
    while not stopping.is_set():
        yield b"data: " + live.document(caller) + b"\n\n"
        await asyncio.sleep(seconds_to_next())


def seconds_to_next() -> float:
    """Half of LIVE_SECONDS or more: all streams wake at the same moment, so that one document serves them."""
    seconds = LIVE_SECONDS - time.monotonic() % LIVE_SECONDS
    return seconds if seconds >= LIVE_SECONDS / 2 else seconds + LIVE_SECONDS
