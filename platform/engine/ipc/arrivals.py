"""Arrivals: what the engine says of one request, on its way to who reads it."""

import asyncio
from collections import deque
from typing import Final

from ..protocol import FinishReason, Tokens

UNANSWERED: Final = (FinishReason.ABORT, FinishReason.ERROR)
READERS_A_TURN: Final = 16
"""Readers that may wake in one turn of the event loop: about a millisecond of work."""


class ReadersInTurn:
    """Wakes a few readers in each turn of the event loop. One step of the engine has tokens for hundreds of them, and
    all that the loop does besides, such as refusing a request, would wait until the last one has written his."""

    def __init__(self) -> None:
        self._left = READERS_A_TURN
        self._waiting: deque[asyncio.Event] = deque()

    def wake(self, arrived: asyncio.Event) -> None:
        if self._left == READERS_A_TURN:
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._left:
            self._left -= 1
            arrived.set()
        else:
            self._waiting.append(arrived)

    def _next_turn(self) -> None:
        woken = [self._waiting.popleft() for _ in range(min(READERS_A_TURN, len(self._waiting)))]
        for arrived in woken:
            arrived.set()
        self._left = READERS_A_TURN - len(woken)
        if woken:
            asyncio.get_running_loop().call_soon(self._next_turn)


class Arrivals:
    """Tokens of a choice that come while nobody reads are joined: a process that falls behind then makes fewer and
    longer events of them, and catches up. One reader, who wakes when `turns` says so."""

    def __init__(self, turns: ReadersInTurn) -> None:
        self._turns = turns
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
        if len(self._waiting) == 1:
            self._turns.wake(self._arrived)

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
