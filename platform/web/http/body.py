"""Body: what a request brings, in blocks of the reader's own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from .body_reader import READER


class Body(Protocol):
    @property
    def filled(self) -> int:
        """Bytes that the last read_into() has brought, also where it was cancelled or raised."""

    @property
    def ended(self) -> bool: ...

    async def read_into(self, block: memoryview) -> None:
        """Fill the block, or as much of it as there are bytes. Raises ClientDisconnect when the connection breaks."""

    def leave(self) -> None:
        """Nobody reads on."""


async def open_steady_body(request: Request, size: int, seconds: float) -> Body:
    """As open_body; its first bytes have `seconds` to come, too. Raises BodyStalled, ClientDisconnect."""
    async with _in_time(seconds):
        return SteadyBody(await open_body(request, size), seconds)


async def open_body(request: Request, size: int) -> Body:
    """A body of `size` bytes by its content-length, over the connection itself where the server lends it. Raises
    ClientDisconnect."""
    make_reader = request.scope.get("extensions", {}).get(READER)
    if make_reader is None:
        return ReceivedBody(request.receive)
    body: Body = make_reader((await _next(request.receive))[0], size)
    return body


class BodyStalled(Exception):
    """What was awaited did not come in time. What has come of it is `filled`."""


class SteadyBody:
    """Another body, each block of which has `seconds` to come: one that stands still, or nearly so, is given up."""

    def __init__(self, body: Body, seconds: float) -> None:
        self._body, self._seconds = body, seconds

    @property
    def filled(self) -> int:
        return self._body.filled

    @property
    def ended(self) -> bool:
        return self._body.ended

    async def read_into(self, block: memoryview) -> None:
        """Raises BodyStalled, ClientDisconnect."""
        async with _in_time(self._seconds):
            await self._body.read_into(block)

    def leave(self) -> None:
        self._body.leave()


class ReceivedBody:
    """As ASGI has it, copied."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._came, self._more = memoryview(b""), True
        self.filled = 0

    @property
    def ended(self) -> bool:
        return not self._came and not self._more

    async def read_into(self, block: memoryview) -> None:
        self.filled = 0
        while self.filled < len(block) and not self.ended:
            if not self._came:
                chunk, self._more = await _next(self._receive)
                self._came = memoryview(chunk)
            taken = min(len(block) - self.filled, len(self._came))
            block[self.filled : self.filled + taken] = self._came[:taken]
            self._came, self.filled = self._came[taken:], self.filled + taken

    def leave(self) -> None:
        pass


@asynccontextmanager
async def _in_time(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise BodyStalled from None


async def _next(receive: Receive) -> tuple[bytes, bool]:
    """Some bytes, and whether there are more."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)
