"""OpenConnections: how many connections may be open that have shown no valid key and no session.

A client that has shown one is never cut off to make room. Of the others the one that has waited longest for its next
request gives way to a newcomer, so that many idle connections keep nobody out.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from starlette.types import Scope

KNOWN: Final = "loraplex.known"
"""ASGI extension of `protocol.Http`: what tell_known() calls."""


def tell_known(scope: Scope) -> None:
    """The client of this request has shown a valid key or session."""
    become_known = scope.get("extensions", {}).get(KNOWN)
    if become_known is not None:
        become_known()


class Connection(Protocol):
    @property
    def address(self) -> str:
        """The other end's; empty where nobody knows."""

    @property
    def answering(self) -> bool:
        """Whether a request has come whole and its answer has not ended."""

    def give_way(self) -> None:
        """End, in words."""


class OpenConnections:
    """Of one port. `is_proxy` tells addresses that stand for many clients: `most_of_address` does not hold for them."""

    def __init__(self, most: int, most_of_address: int, is_proxy: Callable[[str], bool]) -> None:
        self._most, self._most_of_address, self._is_proxy = most, most_of_address, is_proxy
        self._open: dict[Connection, None] = {}
        """In the order in which they came."""
        self._of_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: Connection) -> bool:
        """Whether it may stay. Another one may have to go for it."""
        address = connection.address
        if self._of_address[address] >= self._most_of_address and not self._is_proxy(address):
            has_room = self._make_room(address)
        else:
            has_room = len(self) < self._most or self._make_room()
        if has_room:
            self._open[connection] = None
            self._of_address[address] += 1
        return has_room

    def leave(self, connection: Connection) -> None:
        """It has closed, or its client is known. Twice is no error."""
        if connection in self._open:
            del self._open[connection]
            self._of_address[connection.address] -= 1
            if not self._of_address[connection.address]:
                del self._of_address[connection.address]

    def _make_room(self, address: str | None = None) -> bool:
        """Among those from the address, or among all. False: every one of them awaits its answer."""
        candidates = (one for one in self._open if address in (None, one.address))
        oldest = next((one for one in candidates if not one.answering), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.give_way()
        return True
