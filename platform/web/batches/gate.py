"""Gate: how many lines run now. Users come first: while any of their requests runs, or has just run, one line does, and
only for a part of the time."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ..http.limits import Slots

QUIET_SECONDS: Final = 1.0
"""Without a user's request, after which lines may use the whole engine."""
LOOK_SECONDS: Final = 0.02
REST: Final = 4.0
"""Times as long as a line has run beside users, none does."""


class Gate:
    """`most` lines at once; tenants that wait take turns. `users`: requests that are no lines."""

    def __init__(self, most: int, users: Slots) -> None:
        self._most, self._users = most, users
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._inside = 0
        self._seen, self._seen_at = users.given, -QUIET_SECONDS
        self._rests_until = 0.0

    @asynccontextmanager
    async def inside(self, tenant: str) -> AsyncIterator[None]:
        """Around one line of this tenant, which waits here until it may run."""
        await self._enter(tenant)
        began = time.monotonic()
        try:
            yield
        finally:
            self._inside -= 1
            now = time.monotonic()
            self._rests_until = now + REST * (now - began)
            self._let_in()

    async def _enter(self, tenant: str) -> None:
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(place)
        self._let_in()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._inside -= 1
            raise

    async def run(self) -> None:
        """For ever: let more lines in when users have become quiet."""
        while True:
            self._let_in()
            await asyncio.sleep(LOOK_SECONDS)

    def _let_in(self) -> None:
        while self._waiting and self._inside < self._allowed():
            self._admit()

    def _allowed(self) -> int:
        now = time.monotonic()
        if self._users.taken or self._users.given != self._seen:
            self._seen, self._seen_at = self._users.given, now
        if now - self._seen_at > QUIET_SECONDS:
            return self._most
        return 1 if now >= self._rests_until else 0

    def _admit(self) -> None:
        """The first line of the tenant that has waited longest for its turn."""
        tenant = next(iter(self._waiting))
        places = self._waiting.pop(tenant)
        place = places.popleft()
        if places:
            self._waiting[tenant] = places
        if not place.done():
            place.set_result(None)
            self._inside += 1
