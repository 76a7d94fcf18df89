"""Arrivals: what the engine says of one request, on its way to who reads it."""

import asyncio
from typing import Final

from .protocol import FinishReason, Tokens

UNANSWERED: Final = (FinishReason.ABORT, FinishReason.ERROR)


class Arrivals:
    """Tokens of a choice that come while nobody reads are joined: a process that falls behind then makes fewer and
    longer events of them, and catches up. One reader."""

    def __init__(self) -> None:
        self._waiting: list[Tokens] = []
        self._last: dict[int, Tokens] = {}
        """By choice, of those."""
        self._failure: Exception | None = None
        self._arrived = asyncio.Event()

    def put(self, message: Tokens) -> None:
        before = self._last.get(message.index)
        # What came before a choice was cut short is told before that.
        if before is not None and message.finish_reason not in UNANSWERED:
            _join(before, message)
            return
        self._waiting.append(message)
        self._last[message.index] = message
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        """Raise it for the reader, after what came before it."""
        self._failure = error
        self._arrived.set()

    async def get(self) -> list[Tokens]:
        """All that is there, no less than one message; those of a choice in their order."""
        await self._arrived.wait()
        found, self._waiting, self._last = self._waiting, [], {}
        if not found:
            assert self._failure is not None
            raise self._failure
        if self._failure is None:
            self._arrived.clear()
        return found


def _join(before: Tokens, message: Tokens) -> None:
    """Two messages of one choice, of which the second has none of what only a first one has."""
    before.token_ids += message.token_ids
    if message.logprobs is not None:
        before.logprobs = [*(before.logprobs or ()), *message.logprobs]
    before.finish_reason, before.stop_reason = message.finish_reason, message.stop_reason
