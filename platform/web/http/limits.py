"""Limits: how large a body may be, and how many requests may be in flight."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, PageOf, answer_of, overloaded

LINGER_BYTES: Final = 64 << 20
LINGER_SECONDS: Final = 5.0


class BodyLimit:
    """ASGI middleware: 413 for a body above `limit_of(scope)` bytes, declared or not.

    What a refused client still sends is read for a while: closing on unread bytes would cut off the answer on its way.
    """

    def __init__(self, app: ASGIApp, limit_of: Callable[[Scope], int], page_of: PageOf) -> None:
        self._app = app
        self._limit_of = limit_of
        self._page_of = page_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        body = _Body(receive, send, self._limit_of(scope))
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or len(declared) > 18 or int(declared) > body.limit:
            answer = answer_of(too_large(body.limit), scope, self._page_of)
            return await answer(scope, body.receive, body.send)
        return await self._app(scope, body.receive, body.send)


class _Body:
    """A request's body, and the answer that waits for its end."""

    def __init__(self, receive: Receive, send: Send, limit: int) -> None:
        self.limit = limit
        self._receive = receive
        self._send = send
        self._received = 0
        self._ended = False

    async def receive(self) -> Message:
        message = await self._next()
        if self._received > self.limit:
            raise too_large(self.limit)
        return message

    async def send(self, message: Message) -> None:
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if last and not self._ended:
            await self._send({**message, "more_body": True})
            await self._discard_rest()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _next(self) -> Message:
        message = await self._receive()
        self._received += len(message.get("body", b""))
        self._ended = not message.get("more_body", False)
        return message

    async def _discard_rest(self) -> None:
        most = self._received + LINGER_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while not self._ended and self._received < most:
                    await self._next()


def too_large(limit: int) -> ApiError:
    message = f"The body is larger than the {limit:,} bytes this server accepts here."
    return ApiError(413, message, code="body_too_large", headers={"connection": "close"})


class Slots:
    """At most `capacity` holders at once; one more is told to come back later."""

    def __init__(self, capacity: int, what: str) -> None:
        self._capacity = capacity
        self._what = what
        self.taken = self.given = 0
        """Now, and ever."""

    def check_room(self) -> None:
        """Raises ApiError 503 when all are taken."""
        if self.taken >= self._capacity:
            raise overloaded(f"This server already has {self.taken} {self._what}, its limit. Try again in a moment.")

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Raises ApiError 503 when all are taken."""
        self.check_room()
        self.taken += 1
        self.given += 1
        try:
            yield
        finally:
            self.taken -= 1
