"""Chunks: the events of one completion stream. What stays the same over a stream is encoded once."""

from typing import Any

import msgspec

from ..generation import Usage

encode = msgspec.json.encode


class Chunks:
    """`with_usage`: every chunk has the member `usage`, null in all but the last; with `running` it counts along."""

    def __init__(self, head: dict[str, Any], with_usage: bool, running: bool) -> None:
        self._head = b"data: " + encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if with_usage else b"]}\n\n"
        self._running = running

    def of_choice(self, choice: bytes, usage: Usage) -> bytes:
        """One event with one choice; `usage` is what its prompt has used so far."""
        return self._with_usage(choice, usage) if self._running else self._head + choice + self._tail

    def of_usage(self, usage: Usage) -> bytes:
        """The event before [DONE]: no choice, only the usage of the whole call."""
        return self._with_usage(b"", usage)

    def _with_usage(self, choice: bytes, usage: Usage) -> bytes:
        return self._head + choice + b'],"usage":' + encode(usage.as_json()) + b"}\n\n"
