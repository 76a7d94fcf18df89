"""The overview, and the stream of live state behind every page."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from starlette.responses import Response

from ..dependencies import StateOf
from ..state import State
from .live_state import engine_tone, live_state
from .page import page
from .words import size_words

LIVE_SECONDS: Final = 1.0
HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def overview(request: Request, state: StateOf) -> Response:
    engine = {"state": state.engine.state.value, "tone": engine_tone(state), "facts": _facts(state)}
    return page(request, "overview.html", "/", engine=engine)


@router.get("/dashboard/state")
async def current(state: StateOf) -> Response:
    return Response(msgspec.json.encode(live_state(state)), media_type="application/json")


@router.get("/dashboard/live")
async def live(state: StateOf) -> StreamingResponse:
    return StreamingResponse(_states(state), media_type="text/event-stream", headers=HEADERS)


async def _states(state: State) -> AsyncIterator[bytes]:
    while not state.stopping.is_set():
        yield b"data: " + msgspec.json.encode(live_state(state)) + b"\n\n"
        await asyncio.sleep(LIVE_SECONDS)


def _facts(state: State) -> list[tuple[str, str]]:
    info = state.engine.info
    if info is None:
        return [("Base", state.settings.base_name), ("State", state.engine.state.value)]
    tokens = info.num_blocks * info.block_size
    return [
        ("Base", f"{state.settings.base_name} ({info.architecture})"),
        ("Device", f"{info.device}, {info.num_threads} threads"),
        ("Weights", f"{info.dtype}, {size_words(info.weight_bytes)}"),
        ("Compute", info.compute),
        ("KV cache", f"{tokens:,} tokens, {size_words(info.kv_cache_bytes)}"),
        ("Context", f"{info.max_model_len:,} tokens"),
    ]
