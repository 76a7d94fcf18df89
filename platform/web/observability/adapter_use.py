"""When each adapter was last used here, by its name: others may have the same bytes, and one entry in the engine."""

import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

Owner = tuple[str, str]
"""Tenant and name."""
NEVER: Final = float("-inf")


class AdapterUse:
    """Of this process since its start; the ledger knows the hours before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: Counter[Owner] = Counter()
        self._ended: dict[Owner, float] = {}

    def begin(self, tenant: str, names: Collection[str]) -> None:
        """A request runs with these adapters. Followed by one `end`."""
        self._running.update((tenant, name) for name in names)

    def end(self, tenant: str, names: Collection[str]) -> None:
        now = self._clock()
        for name in names:
            owner = tenant, name
            self._ended[owner] = now
            self._running[owner] -= 1
            if not self._running[owner]:
                del self._running[owner]

    def running(self, tenant: str, name: str) -> int:
        """Requests that run with it now."""
        return self._running[tenant, name]

    def seconds_since(self, tenant: str, name: str) -> float | None:
        """Since its last request ended; 0 while one runs. None: there was none."""
        if self._running[tenant, name]:
            return 0.0
        ended = self._ended.get((tenant, name))
        return None if ended is None else self._clock() - ended

    def forget(self, tenant: str, name: str) -> None:
        """It was removed."""
        self._ended.pop((tenant, name), None)
