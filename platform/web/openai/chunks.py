"""Chunks: the events of one completion stream. What stays the same over a stream is encoded once."""

import time
import uuid
from typing import Any

import msgspec

from ..http.errors import ApiError
from ..http.event_stream import ended
from ..quotas.meters import Usage
from .schemas import GenerationFields

encode = msgspec.json.encode


def head(prefix: str, kind: str, model: str) -> dict[str, Any]:
    """What an answer begins with, and each of its chunks. `prefix`: of its id; `kind`: its `object`."""
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


class Chunks:
    """Where usage is asked for, every chunk has the member `usage`: null in all but the last, or counting along."""

    def __init__(self, prefix: str, kind: str, fields: GenerationFields) -> None:
        """`prefix` and `kind` as in `head`."""
        self._head = b"data: " + encode(head(prefix, kind, fields.model))[:-1] + b',"choices":['
        self._with_usage = fields.wants_usage()
        self._tail = b'],"usage":null}\n\n' if self._with_usage else b"]}\n\n"
        self._running = fields.wants_running_usage()

    def of_choice(self, choice: bytes, usage: Usage) -> bytes:
        """One event with one choice; `usage` is what its prompt has used so far."""
        return self._counting(choice, usage) if self._running else self._head + choice + self._tail

    def of_usage(self, usage: Usage) -> bytes:
        """The event before [DONE], where it is asked for: no choice, only the usage of the whole call."""
        return self._counting(b"", usage) if self._with_usage else b""

    def _counting(self, choice: bytes, usage: Usage) -> bytes:
        return self._head + choice + b'],"usage":' + encode(usage.as_json()) + b"}\n\n"


class ChunkedFormat:
    """What formats have in common whose streams are chunks."""

    def __init__(self, prefix: str, kind: str, fields: GenerationFields) -> None:
        """`prefix` and `kind` as in `head`."""
        self.chunks = Chunks(prefix, kind, fields)

    def last_events(self, usage: Usage) -> bytes:
        return self.chunks.of_usage(usage)

    def ending(self, error: ApiError | None) -> bytes:
        return ended(error)
