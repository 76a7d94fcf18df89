"""BodyReader: a request's body, read by the system straight into the blocks of whoever asks."""

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.flow_control import FlowControl

READER: Final = "loraplex.body_reader"
"""ASGI extension of `Http`: makes a BodyReader of the body's first bytes, which have been received, and its size."""
DISCARD_BYTES: Final = 1 << 16


class BodyReader(asyncio.BufferedProtocol):
    """Takes the place of `http` on the connection until the body has come, or nobody wants it any more.

    Through uvicorn each byte is copied four times more, and what Python does about it costs as much as the SHA-256.
    Nothing is read between two calls of read_into(): a sender who is faster than the disk waits.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        flow: FlowControl,
        http: asyncio.Protocol,
        first: bytes,
        size: int,
        on_end: Callable[[], None],
    ) -> None:
        """`on_end` is called when bytes beyond `first` have come and `http` has its connection again."""
        self._transport, self._flow, self._http, self._on_end = transport, flow, http, on_end
        self._first, self._left = memoryview(first), size - len(first)
        self._block = memoryview(b"")
        self._full: asyncio.Future[None] | None = None
        self._broken = False
        self.filled = 0
        if self._left:
            flow.pause_reading()
            transport.set_protocol(self)

    @property
    def ended(self) -> bool:
        return not self._first and self._left == 0

    async def read_into(self, block: memoryview) -> None:
        """Fill the block, or as much of it as there are bytes. Raises ClientDisconnect when the connection breaks."""
        self.filled = min(len(self._first), len(block))
        block[: self.filled], self._first = self._first[: self.filled], self._first[self.filled :]
        self._block = block[: self.filled + self._left]
        if self.filled < len(self._block) and not self._broken:
            await self._read()
        if self.filled < len(self._block):
            raise ClientDisconnect

    def leave(self) -> None:
        """What is left of the body is forgotten as it comes. The connection ends with the answer."""
        self.filled, self._block = 0, memoryview(bytearray(min(DISCARD_BYTES, self._left)))

    async def _read(self) -> None:
        self._full = asyncio.get_running_loop().create_future()
        self._flow.resume_reading()
        try:
            await self._full
        finally:
            self._full = None
            self._flow.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._full is None:
            return self._block[: self._left]
        return self._block[self.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._left -= nbytes
        if self._full is not None:
            self.filled += nbytes
            if self.filled == len(self._block):
                self._flow.pause_reading()
                self._wake()
        if self._left == 0:
            self._flow.pause_reading()
            self._transport.set_protocol(self._http)
            self._on_end()

    def eof_received(self) -> None:
        self._broken = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.eof_received()
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def _wake(self) -> None:
        if self._full is not None and not self._full.done():
            self._full.set_result(None)
