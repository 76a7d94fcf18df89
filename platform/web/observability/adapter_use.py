"""When each adapter was last used here, by its name: others may have the same bytes, and one entry in the engine."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

Owner = tuple[str, str]
"""Tenant and name."""


class AdapterUse:
    """Of this process since its start; the ledger knows the hours before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[Owner, Counter[int]] = {}
        """Requests by version."""
        self._ended: dict[Owner, tuple[float, datetime]] = {}
        """By the clock, and by the calendar: a moment that is told twice is the same."""

    def begin(self, tenant: str, versions: Mapping[str, int]) -> None:
        """A request runs with these adapters, given by name. Followed by one `end`."""
        for name, version in versions.items():
            self._running.setdefault((tenant, name), Counter())[version] += 1

    def end(self, tenant: str, versions: Mapping[str, int]) -> None:
        now = self._clock()
        for name, version in versions.items():
            owner = tenant, name
            self._ended[owner] = now, datetime.now(UTC)
            self._running[owner][version] -= 1
            if not self._running[owner].total():
                del self._running[owner]

    def running(self, tenant: str, name: str, version: int | None = None) -> int:
        """Requests that run with it now, with any version unless one is given."""
        counts = self._running.get((tenant, name))
        if counts is None:
            return 0
        return counts.total() if version is None else counts[version]

    def seconds_since(self, tenant: str, name: str) -> float | None:
        """Since its last request ended; 0 while one runs. None: there was none."""
        if self.running(tenant, name):
            return 0.0
        ended = self._ended.get((tenant, name))
        return None if ended is None else self._clock() - ended[0]

    def last(self, tenant: str, name: str) -> datetime | None:
        """When its last request ended; now while one runs. None: there was none."""
        if self.running(tenant, name):
            return datetime.now(UTC)
        ended = self._ended.get((tenant, name))
        return None if ended is None else ended[1]

    def forget(self, tenant: str, name: str) -> None:
        """It was removed."""
        self._ended.pop((tenant, name), None)
