"""EventStream: server-sent events that ping while they wait, end with one word, and stop when nobody listens."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError, note, response_of

PING: Final = b": ping\n\n"
DONE: Final = b"data: [DONE]\n\n"
HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
T = TypeVar("T")

logger = logging.getLogger(__name__)


def event(data: bytes, name: str = "") -> bytes:
    """One server-sent event of one line, by its name if it has one."""
    named = f"event: {name}\n".encode() if name else b""
    return named + b"data: " + data + b"\n\n"


def ended(error: ApiError | None) -> bytes:
    """How OpenAI's older streams end: with an event of their error, if they have one, and a last word."""
    return DONE if error is None else event(msgspec.json.encode({"error": error.fields()})) + DONE


class EventStream(Response):
    """`events` are encoded events; an ApiError before the first becomes the HTTP status, a later one is told by
    `ending`, whose bytes are the last.

    `late_headers` are read when the answer begins, so that the events' maker may still fill them in. `ping` is what
    long silences are filled with.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        ping_seconds: float,
        headers: Mapping[str, str] | None = None,
        late_headers: Mapping[str, str] | None = None,
        ending: Callable[[ApiError | None], bytes] = ended,
        ping: bytes = PING,
    ) -> None:
        super().__init__(headers={**HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._events = events
        self._late_headers = {} if late_headers is None else late_headers
        self._ping_seconds = ping_seconds
        self._ending = ending
        self._ping = ping
        self._opened = False
        self._last_sent = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.create_task(self._produce(scope, receive, send))
        watch = asyncio.create_task(self._watch(receive, send))
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(watch)
            await _end(work)

    async def _produce(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = await self._send_events(send)
        if error is not None and not self._opened:
            note(scope, error)
            await response_of(error, scope)(scope, receive, send)
            return
        await self._write(send, self._ending(error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, send: Send) -> ApiError | None:
        """All events; what ended them early, if something did."""
        async with aclosing(self._events) as events:
            try:
                async for data in events:
                    await self._write(send, data)
            except ApiError as error:
                return error
            except Exception:
                logger.exception("a stream failed")
                return ApiError(500, "The server failed on this request.", type="server_error", code="internal_error")
        return None

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Return when the client has gone; meanwhile send a ping into every long silence."""
        while True:
            try:
                async with asyncio.timeout(self._ping_seconds):
                    message = await receive()
            except TimeoutError:
                if time.monotonic() - self._last_sent >= self._ping_seconds * 0.9:
                    await self._write(send, self._ping)
                continue
            if message["type"] == "http.disconnect":
                return

    async def _write(self, send: Send, data: bytes) -> None:
        self._last_sent = time.monotonic()
        if not self._opened:
            self._opened = True
            self.headers.update(self._late_headers)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": data, "more_body": True})


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client hangs up. The body must have been read."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "The client closed the connection.", code="client_closed_request")
        return task.result()
    finally:
        await _end(watch)
        await _end(task)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(task: "asyncio.Task[Any]") -> None:
    """Cancel it and wait until it has let go of everything."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
