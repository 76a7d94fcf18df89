"""MultipartReader: the parts of a form (RFC 7578) as its bytes come, of which none is kept."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .errors import invalid

MOST_HEAD: Final = 8192
"""Bytes of one part's headers."""
NAME = re.compile(r"""(?:^|;)\s*name=(?:"([^"]*)"|([^\s;"]+))""", re.IGNORECASE)
FILENAME = re.compile(r"""(?:^|;)\s*filename=(?:"([^"]*)"|([^\s;"]+))""", re.IGNORECASE)
BOUNDARY = re.compile(r"""(?:^|;)\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """The head of one. `filename` None: a plain field."""

    name: str
    filename: str | None


def boundary_of(content_type: str) -> bytes:
    """Raises ApiError for a body that is no such form."""
    kind, _, parameters = content_type.partition(";")
    found = BOUNDARY.search(parameters)
    if kind.strip().lower() != "multipart/form-data" or found is None:
        raise invalid("Send a form: content-type must be multipart/form-data with a boundary.", "content-type")
    return (found[1] or found[2]).encode("latin-1")


class MultipartReader:
    """feed() what comes; `ended` once the form is complete."""

    def __init__(self, boundary: bytes) -> None:
        self._mark = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")
        self._part: Part | None = None
        self._in_head = False
        self.ended = False

    def feed(self, data: bytes | memoryview) -> Iterator[Part | bytes]:
        """The head of each part, followed by the part's bytes. Raises ApiError."""
        self._buffer += data
        while not self.ended:
            if self._in_head:
                if not self._read_head():
                    return
                if self._part is not None:
                    yield self._part
                continue
            place = self._buffer.find(self._mark)
            if place < 0:
                yield from self._taken(len(self._buffer) - len(self._mark) + 1)
                return
            yield from self._taken(place)
            del self._buffer[: len(self._mark)]
            self._in_head = True

    def _taken(self, count: int) -> Iterator[bytes]:
        """The first bytes of the buffer, where they are a part's."""
        if count > 0:
            taken = bytes(self._buffer[:count])
            del self._buffer[:count]
            if self._part is not None:
                yield taken

    def _read_head(self) -> bool:
        """False: more bytes must come."""
        if self._buffer.startswith(b"--"):
            self.ended, self._part = True, None
            return True
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MOST_HEAD:
                raise invalid(f"A part of the form has more than {MOST_HEAD} bytes of headers.")
            return False
        self._part, self._in_head = _part_of(bytes(self._buffer[:end])), False
        del self._buffer[: end + 4]
        return True


def _part_of(head: bytes) -> Part:
    for line in head.decode("utf-8", "replace").split("\r\n"):
        header, _, value = line.partition(":")
        name = NAME.search(value)
        if header.strip().lower() == "content-disposition" and name is not None:
            filename = FILENAME.search(value)
            return Part(_text(name), None if filename is None else _text(filename))
    raise invalid("A part of the form has no name: its content-disposition must have one.")


def _text(found: re.Match[str]) -> str:
    """As browsers write it: a quotation mark is %22."""
    return (found[1] if found[1] is not None else found[2]).replace("%22", '"')
