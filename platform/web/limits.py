"""Limits: how large a body may be, and how many requests may be in flight."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, overloaded


class BodyLimit:
    """ASGI middleware: 413 for a body above `limit_of(scope)` bytes, declared or not."""

    def __init__(self, app: ASGIApp, limit_of: Callable[[Scope], int]) -> None:
        self._app = app
        self._limit_of = limit_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        limit = self._limit_of(scope)
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or len(declared) > 18 or int(declared) > limit:
            return await too_large(limit).response()(scope, receive, send)
        return await self._app(scope, _bounded(receive, limit), send)


def _bounded(receive: Receive, limit: int) -> Receive:
    received = 0

    async def receive_within() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise too_large(limit)
        return message

    return receive_within


def too_large(limit: int) -> ApiError:
    message = f"The body is larger than the {limit} bytes this server accepts here."
    return ApiError(413, message, code="body_too_large", headers={"connection": "close"})


class Slots:
    """At most `capacity` holders at once; one more is told to come back later."""

    def __init__(self, capacity: int, what: str) -> None:
        self._capacity = capacity
        self._what = what
        self.taken = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Raises ApiError 503 when all are taken."""
        if self.taken >= self._capacity:
            raise overloaded(f"This server already has {self.taken} {self._what}, its limit. Try again in a moment.")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
