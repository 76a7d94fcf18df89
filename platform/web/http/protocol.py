"""Http: uvicorn's HTTP/1.1 over httptools with limits on what comes before a request is known, for clients that offer
HTTP/2, and for large bodies.

Nothing of a head beyond its limit is read by the parser, which keeps what it has read. While a request is answered no
clock of this file runs; at any other time one does, so that no connection stays open for good.
"""

import asyncio
import re
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

import httptools
import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ..settings.settings import Settings
from .body_reader import READER, BodyReader
from .errors import ApiError, overloaded
from .open_connections import KNOWN, OpenConnections

HEAD_END: Final = b"\r\n\r\n"
HTTP2_OFFER: Final = re.compile(rb"\r\nupgrade: *h2c(?=\r\n)", re.IGNORECASE)
LINGER_SECONDS: Final = 2.0
"""In which a client that is refused may still send: closing on unread bytes would cut off the answer on its way."""
MOST_PIPELINED: Final = 100
HEADER_EXTRA: Final = len(b": \r\n")


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """Of a request line with its headers, and of the headers behind a chunked body."""

    bytes: int = 64 << 10
    headers: int = 100
    seconds: float = 10.0
    """From its first byte, or from the connection's beginning, to its end."""


LIMITS: Final = HeadLimits()


class _Refused(Exception):
    """Ends the parser's work; the client has been told."""


class Http(HttpToolsProtocol):
    """Ignores the offer to go on in HTTP/2, as Java's client makes it with every request.

    httptools would stop at it and drop the body; h11 reads it, but doubled the time per token of one stream.
    """

    def __init__(
        self, *arguments: Any, limits: HeadLimits = LIMITS, unknown: OpenConnections | None = None, **named: Any
    ) -> None:
        """`unknown`: the connections of this port whose clients are not known; None: they have no limit."""
        super().__init__(*arguments, **named)
        self._limits, self._unknown = limits, unknown
        self._in_head = True
        self._unfinished = 0
        """Bytes of the head so far; of a body, those since the last byte of it."""
        self._size = self._headers = 0
        """What the parser has passed on of the head."""
        self._clock: asyncio.TimerHandle | None = None
        self._refused = False

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._unknown is None or self._unknown.enter(self):
            self._start_clock()
        else:
            self.give_way()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self._become_known()
        super().connection_lost(exc)

    def give_way(self) -> None:
        self._refuse(overloaded("Too many connections without a key are open. Try again in a moment."))
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            data = _without_offer(data)
        while data and not self._refused:
            room = max(1, self._limits.bytes - self._unfinished) if self._in_head else len(data)
            self._parse(data[:room])
            data = data[room:]
        if not (self._refused or self.answering):
            self._start_clock()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {READER: self.read_body, KNOWN: self._become_known}  # type: ignore[dict-item]
        self._size = self._headers = 0
        if len(self.pipeline) >= MOST_PIPELINED:
            self._stop(ApiError(400, f"More than {MOST_PIPELINED} requests were pipelined."))

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Those behind a chunked body are nobody's."""
        self._headers += 1
        self._count(len(name) + len(value) + HEADER_EXTRA)
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_head, self._unfinished = False, 0
        self._stop_clock()

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Uvicorn forgets that a body has ended when it came after its answer."""
        super().on_message_complete()
        self._in_head, self._unfinished = True, 0
        if self.cycle is not None:
            self.cycle.more_body = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not (self.answering or self.transport.is_closing()) and (self.cycle.more_body or self._unfinished):
            self._start_clock()

    def _unsupported_upgrade_warning(self) -> None:
        """An offer to go on in another protocol is not taken, which is no fault; uvicorn's words are about packages."""

    def send_400_response(self, msg: str) -> None:
        if not self._refused:
            self._refuse(ApiError(400, "This is not a valid HTTP/1.1 request.", code="bad_request"))

    def read_body(self, first: bytes, size: int) -> BodyReader:
        """`first` is what receive() has given of a body of `size` bytes. Nothing must have come meanwhile."""
        return BodyReader(self.transport, self.flow, self, first, size, self._await_next)

    def _await_next(self) -> None:
        """The parser has not seen the end of the body, so that a new one awaits the next request."""
        self.parser = httptools.HttpRequestParser(self)
        # As uvicorn's own: what is sent behind the last request of a connection does not cost it its answer.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.on_message_complete()
        if self.cycle.response_complete:
            self.flow.resume_reading()

    def _parse(self, piece: bytes) -> None:
        self._unfinished += len(piece)
        super().data_received(piece)
        if self._unfinished >= self._limits.bytes and not self._refused:
            self._refuse(self._too_large())

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > self._limits.bytes or self._headers > self._limits.headers:
            self._stop(self._too_large())

    def _too_large(self) -> ApiError:
        limits = self._limits
        message = f"This server takes {limits.bytes:,} bytes of headers and {limits.headers} of them. Send fewer."
        return ApiError(431, message, code="headers_too_large")

    def _stop(self, error: ApiError) -> NoReturn:
        self._refuse(error)
        raise _Refused

    def _refuse(self, error: ApiError) -> None:
        """Hear no more of the client, and tell it why. An answer that is under way ends first."""
        self._refused = True
        self._stop_clock()
        self._unset_keepalive_if_required()
        if self.answering and not self.cycle.more_body:
            self.cycle.keep_alive = False
        elif self.answering or self.transport.is_closing():
            self.transport.close()
        else:
            self.transport.write(_last_answer(error))
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _start_clock(self) -> None:
        if self._clock is None:
            self._clock = self.loop.call_later(self._limits.seconds, self._run_out)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _run_out(self) -> None:
        if self._in_head and self._unfinished:
            message = f"The headers did not arrive within {self._limits.seconds:g} seconds."
            self._refuse(ApiError(408, message, code="request_timeout"))
        else:
            self.transport.close()

    def _become_known(self) -> None:
        if self._unknown is not None:
            self._unknown.leave(self)


def bounded_http(settings: Settings) -> type[Http]:
    """The protocol of one port's connections, which are counted together."""
    uvicorns = uvicorn.Config("")
    proxies = ProxyHeadersMiddleware(uvicorns.app, uvicorns.forwarded_allow_ips).trusted_hosts  # type: ignore[arg-type]
    unknown = OpenConnections(settings.max_unknown_connections, settings.max_unknown_per_address, proxies.__contains__)
    return partial(Http, unknown=unknown)  # type: ignore[return-value]


def _last_answer(error: ApiError) -> bytes:
    body = error.body()
    headers = {"content-type": "application/json", "content-length": len(body), **error.headers, "connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return STATUS_LINE[error.status] + lines.encode() + b"\r\n" + body


def _without_offer(data: bytes) -> bytes:
    """Looks at the head alone: a search through bodies takes as long as their SHA-256."""
    end = data.find(HEAD_END) + len(HEAD_END)
    head, body = (data[:end], data[end:]) if end >= len(HEAD_END) else (data, b"")
    return HTTP2_OFFER.sub(b"", head) + body if b"h2c" in head else data
