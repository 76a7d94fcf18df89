"""A bare server with our HTTP protocol: python -m tests.web.http_server [stock]. Prints its port."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from loraplex.web.http.open_connections import OpenConnections, tell_known
from loraplex.web.http.protocol import LIMITS, HeadLimits, Http


async def tell_sizes(scope: Scope, receive: Receive, send: Send) -> None:
    """How many headers and bytes of body came; /known is who shows a key; /slow waits before it answers."""
    if scope["type"] != "http":
        return
    if scope["path"] == "/known":
        tell_known(scope)
    if scope["path"] == "/slow":
        await asyncio.sleep(1.0)
    size = 0
    try:
        async for piece in Request(scope, receive).stream():
            size += len(piece)
    except ClientDisconnect:
        return
    await PlainTextResponse(f"{len(scope['headers'])} {size}")(scope, receive, send)


@asynccontextmanager
async def http_server(
    app: ASGIApp = tell_sizes, limits: HeadLimits = LIMITS, unknown: OpenConnections | None = None
) -> AsyncIterator[int]:
    """Its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            app,  # type: ignore[arg-type]
            http=partial(Http, limits=limits, unknown=unknown),  # type: ignore[arg-type]
            lifespan="off",
            log_config=None,
            ws="none",
        )
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await running


def main() -> None:
    http = HttpToolsProtocol if sys.argv[1:] == ["stock"] else Http
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(tell_sizes, http=http, lifespan="off", log_config=None)  # type: ignore[arg-type]
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
