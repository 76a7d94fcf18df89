"""The monitoring port: /metrics and the probes alone, for a Prometheus that holds no key, on an address of its own."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI

from .http.errors import HANDLERS
from .http.protocol import bounded_http
from .openai.health import router
from .state import State


class _Quiet(uvicorn.Server):
    """Leaves signals to the server beside it."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()


def monitoring_app(state: State) -> FastAPI:
    """No key is asked for: whoever reaches it may read how much is served, and the adapters' names."""
    app = FastAPI(exception_handlers=HANDLERS, openapi_url=None, redirect_slashes=False)
    app.state.loraplex = state
    app.include_router(router)
    return app


@contextlib.asynccontextmanager
async def monitoring(state: State, listener: socket.socket | None) -> AsyncIterator[None]:
    """Serve it while the block lasts; without a listener there is none."""
    if listener is None:
        yield
        return
    server = _Quiet(
        uvicorn.Config(
            monitoring_app(state),
            http=bounded_http(state.settings),
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task
