"""Http: uvicorn's HTTP/1.1 over httptools, for clients that offer HTTP/2 and for large bodies."""

import re
from typing import Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .body_reader import READER, BodyReader

HEAD_END: Final = b"\r\n\r\n"
HTTP2_OFFER: Final = re.compile(rb"\r\nupgrade: *h2c(?=\r\n)", re.IGNORECASE)


class Http(HttpToolsProtocol):
    """Ignores the offer to go on in HTTP/2, as Java's client makes it with every request.

    httptools would stop at it and drop the body; h11 reads it, but doubled the time per token of one stream.
    """

    def data_received(self, data: bytes) -> None:
        in_body = self.cycle is not None and self.cycle.more_body
        super().data_received(data if in_body else _without_offer(data))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {READER: self.read_body}  # type: ignore[dict-item]

    def on_message_complete(self) -> None:
        """Uvicorn forgets that a body has ended when it came after its answer."""
        super().on_message_complete()
        if self.cycle is not None:
            self.cycle.more_body = False

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


def _without_offer(data: bytes) -> bytes:
    """Looks at the head alone: a search through bodies takes as long as their SHA-256."""
    end = data.find(HEAD_END) + len(HEAD_END)
    head, body = (data[:end], data[end:]) if end >= len(HEAD_END) else (data, b"")
    return HTTP2_OFFER.sub(b"", head) + body if b"h2c" in head else data
