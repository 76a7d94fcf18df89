"""The two ends of the socket between API process and engine process.

Every frame in either direction is a msgpack list of protocol messages behind its length. Plain sockets: a queue with
threads of its own wakes two of them for every token, which on few cores costs the model its cores.
"""

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable, Iterator
from typing import Final, cast

import msgspec

from ..protocol import FromEngine, Shutdown, ToEngine

LENGTH_BYTES: Final = 4
CHUNK: Final = 1 << 18
"""Bytes read at once."""
LAST_WORDS_SECONDS: Final = 1.0


class Frames:
    """Cuts a byte stream into the frames it is made of."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._data += data
        while len(self._data) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._data[:LENGTH_BYTES])
            if len(self._data) < end:
                return
            frame = bytes(self._data[LENGTH_BYTES:end])
            del self._data[:end]
            yield frame


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(LENGTH_BYTES) + payload


class SendBuffer:
    """Bytes for a socket that does not block: what it has no room for is kept and sent later."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.data = bytearray()

    @property
    def events(self) -> int:
        """What to poll the connection for."""
        return select.POLLIN | (select.POLLOUT if self.data else 0)

    def push(self, more: bytes = b"") -> None:
        """As much as there is room for. Where the other end is gone there is nothing to send; reading tells."""
        self.data += more
        try:
            while self.data:
                del self.data[: self._connection.send(self.data)]
        except BlockingIOError:
            pass
        except ConnectionError:
            self.data.clear()


class EngineEnd:
    """The engine's end. Sending never waits: what the other end has no room for is kept and sent later."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._poll = select.poll()
        self._unsent = SendBuffer(connection)
        self._frames = Frames()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[ToEngine])

    def send(self, messages: list[FromEngine]) -> None:
        self._unsent.push(framed(self._encoder.encode(messages)))

    def receive(self, patience: int) -> list[ToEngine]:
        """All messages that are there; waits up to `patience` milliseconds for the first. A parent that is gone says
        Shutdown."""
        if patience:
            self._poll.register(self._connection, self._unsent.events)
            self._poll.poll(patience)
        self._unsent.push()
        messages: list[ToEngine] = []
        try:
            while data := self._connection.recv(CHUNK):
                for frame in self._frames.feed(data):
                    messages += self._decoder.decode(frame)
        except BlockingIOError:
            return messages
        except ConnectionError:
            pass
        return [*messages, Shutdown()]

    def close(self) -> None:
        """Send what is kept, then close. Twice is no error.

        Not before the other end has: one that writes to a closed socket may lose what it has not read.
        """
        with contextlib.suppress(OSError):
            self._connection.settimeout(LAST_WORDS_SECONDS)
            self._connection.sendall(self._unsent.data)
            self._connection.shutdown(socket.SHUT_WR)
            while self._connection.recv(CHUNK):
                pass
        self._connection.close()


class ClientEnd(asyncio.Protocol):
    """The API process's end: hands on what comes, the moment it comes."""

    def __init__(self, on_messages: Callable[[list[FromEngine]], None]) -> None:
        self._on_messages = on_messages
        self._frames = Frames()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[FromEngine])
        self._transport: asyncio.WriteTransport | None = None
        self.closed = asyncio.Event()
        """Everything the other end sent before it ended has been handed on."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            self._on_messages(self._decoder.decode(frame))

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()

    def send(self, message: ToEngine) -> None:
        """What cannot be sent is for a process that has gone, and its end tells everyone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(framed(self._encoder.encode([message])))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
