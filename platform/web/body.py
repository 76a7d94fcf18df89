"""Body: what a request brings, in blocks of the reader's own."""

from typing import Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from .body_reader import READER


class Body(Protocol):
    filled: int
    """Bytes that the last read_into() has brought, also where it was cancelled or raised."""

    @property
    def ended(self) -> bool: ...

    async def read_into(self, block: memoryview) -> None:
        """Fill the block, or as much of it as there are bytes. Raises ClientDisconnect when the connection breaks."""

    def leave(self) -> None:
        """Nobody reads on."""


async def open_body(request: Request, size: int) -> Body:
    """A body of `size` bytes by its content-length, over the connection itself where the server lends it. Raises
    ClientDisconnect."""
    make_reader = request.scope.get("extensions", {}).get(READER)
    if make_reader is None:
        return ReceivedBody(request.receive)
    body: Body = make_reader((await _next(request.receive))[0], size)
    return body


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


async def _next(receive: Receive) -> tuple[bytes, bool]:
    """Some bytes, and whether there are more."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)
