"""FairExecutor: few threads for much work. Tenants take turns at them, and none has them all.

So the slow work of one keeps nobody else waiting.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import ContextVar
from typing import Final, TypeVar

T = TypeVar("T")

asking: Final = ContextVar("asking", default="")
"""The tenant whose request this task answers; empty for the server's own work."""


class FairExecutor:
    """For one event loop. Nobody is turned away; who waits may be cancelled."""

    def __init__(self, places: int, threads: Executor | None = None) -> None:
        """At least two places, of which a tenant has all but one at most. `threads` has as many or more; None: those
        of the event loop."""
        self._free, self._most, self._threads = places, places - 1, threads
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work` on a thread, in the turn of whoever is `asking`. Its place is taken until it ends, even
        if nobody waits for it any more."""
        tenant = asking.get()
        await self._enter(tenant)
        try:
            running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        except BaseException:
            self._leave(tenant)
            raise
        running.add_done_callback(lambda ended: self._end(tenant, ended))
        return await asyncio.shield(running)

    def _end(self, tenant: str, ended: asyncio.Future[T]) -> None:
        if not ended.cancelled():
            ended.exception()  # looked at, or asyncio complains where nobody waits
        self._leave(tenant)

    async def _enter(self, tenant: str) -> None:
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(place)
        self._hand_out()
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._forget(tenant, place)
            else:
                self._leave(tenant)
            raise

    def _leave(self, tenant: str) -> None:
        self._free += 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free:
            tenant = next((tenant for tenant in self._waiting if self._held[tenant] < self._most), None)
            if tenant is None:
                return
            places = self._waiting.pop(tenant)
            place = places.popleft()
            if places:
                self._waiting[tenant] = places
            if not place.cancelled():
                self._free -= 1
                self._held[tenant] += 1
                place.set_result(None)

    def _forget(self, tenant: str, place: asyncio.Future[None]) -> None:
        """Unless it was passed over already."""
        places = self._waiting.get(tenant, deque())
        if place in places:
            places.remove(place)
        if not places:
            self._waiting.pop(tenant, None)
