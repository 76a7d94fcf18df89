"""UploadSlots: who may send adapter files at the same time. Who holds more than others gives way to them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from ..http.errors import ApiError, overloaded

RETRY_AFTER: Final = 5
"""Seconds."""
TO_OTHERS: Final = (
    "All upload slots were in use, most of them by you or your tenant, so this upload made room for another tenant's."
)
STOPPED: Final = "The server stopped before this one was complete."


class SlotLost(Exception):
    """The slot is gone; the text says why: it went to somebody who held fewer, or the server stops."""


class Slot:
    """One upload's place. What cannot be broken off `stays`: reading a folder of this machine."""

    def __init__(self, tenant: str, actor: str, stays: bool) -> None:
        self.tenant, self.actor, self.stays = tenant, actor, stays
        self._gone = ""
        self._limit: asyncio.Timeout | None = None

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """Bounds what is done in it. Raises TimeoutError when the seconds are over, SlotLost when the slot is."""
        try:
            async with asyncio.timeout(0 if self._gone else seconds) as self._limit:
                yield
        except TimeoutError:
            if self._gone:
                raise SlotLost(self._gone) from None
            raise
        finally:
            self._limit = None

    def give_way(self, why: str) -> None:
        self._gone = why
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())


class UploadSlots:
    """At most `capacity` at once, and any one tenant or key may have them all as long as nobody else wants one.

    When all are taken, a newcomer gets the slot of the tenant that holds most, and within its own tenant of the key
    that holds most, provided that these still hold as many afterwards as the newcomer: so nobody is sent to and fro,
    and a few slow senders keep nobody out.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._slots: list[Slot] = []

    @property
    def taken(self) -> int:
        return len(self._slots)

    @contextmanager
    def hold(self, tenant: str, actor: str, *, stays: bool = False) -> Iterator[Slot]:
        """`actor`: a key or a user of the tenant. Raises ApiError 503. At most half of the slots are for those that
        stay: the others can always be shared out."""
        self._make_room(tenant, actor, stays)
        slot = Slot(tenant, actor, stays)
        self._slots.append(slot)
        try:
            yield slot
        finally:
            if slot in self._slots:
                self._slots.remove(slot)

    def break_off(self) -> None:
        """The server stops: whoever sends or downloads is told so, and goes on when it is back."""
        for slot in self._slots:
            slot.give_way(STOPPED)

    def _make_room(self, tenant: str, actor: str, stays: bool) -> None:
        most = max(1, self._capacity // 2)
        if stays and sum(slot.stays for slot in self._slots) >= most:
            message = f"This server already reads {most} adapters from folders, its limit."
            raise overloaded(f"{message} Try again in {RETRY_AFTER} seconds.", RETRY_AFTER)
        if len(self._slots) < self._capacity:
            return
        slot = self._slot_for(tenant, actor)
        if slot is None:
            raise self._all_taken(tenant, actor)
        self._slots.remove(slot)
        slot.give_way(TO_OTHERS)

    def _slot_for(self, tenant: str, actor: str) -> Slot | None:
        """The latest one of whoever holds most, if that is enough more than the newcomer holds."""
        tenants = Counter(slot.tenant for slot in self._slots)
        actors = Counter((slot.tenant, slot.actor) for slot in self._slots)

        def is_ahead(slot: Slot) -> bool:
            if slot.tenant != tenant:
                return tenants[slot.tenant] > tenants[tenant] + 1
            return actors[tenant, slot.actor] > actors[tenant, actor] + 1

        ahead = [slot for slot in reversed(self._slots) if not slot.stays and is_ahead(slot)]
        return max(ahead, key=lambda s: (tenants[s.tenant], actors[s.tenant, s.actor]), default=None)

    def _all_taken(self, tenant: str, actor: str) -> ApiError:
        """Of other tenants it does not tell how many there are."""
        ours = [slot for slot in self._slots if slot.tenant == tenant]
        yours = sum(slot.actor == actor for slot in ours)
        return overloaded(
            f"All {self._capacity} upload slots are in use, {yours} by you and {len(ours) - yours} by others in your "
            f"tenant. Try again in {RETRY_AFTER} seconds.",
            RETRY_AFTER,
        )
