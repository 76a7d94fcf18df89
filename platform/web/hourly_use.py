"""HourlyUse: what each model served in each of the last 24 hours, since the server's start; the base is one of them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

HOURS: Final = 24
SECONDS: Final = 3600


@dataclass(slots=True)
class Hour:
    requests: int = 0
    errors: int = 0
    tokens: int = 0
    """Made for requests that ended in it."""


class HourlyUse:
    """Bounded: at most 24 entries for each name that serves."""

    def __init__(self) -> None:
        self._hours: dict[tuple[str, str], dict[int, Hour]] = {}

    def note(self, tenant: str, model: str, failed: bool, tokens: int) -> None:
        """One request has ended."""
        hours, now = self._hours.setdefault((tenant, model), {}), _now()
        if now not in hours:
            hours[now] = Hour()
            for old in [hour for hour in hours if hour <= now - HOURS]:
                del hours[old]
        hours[now].requests += 1
        hours[now].errors += failed
        hours[now].tokens += tokens

    def requests(self, tenant: str, model: str) -> int:
        """In the last 24 hours, this one included."""
        first = _now() - HOURS
        return sum(hour.requests for number, hour in self._hours.get((tenant, model), {}).items() if number > first)

    def of(self, tenant: str, model: str) -> Sequence[tuple[int, Hour]]:
        """The last 24 hours, oldest first, each with the Unix time it began."""
        hours, now = self._hours.get((tenant, model), {}), _now()
        return [(number * SECONDS, hours.get(number, Hour())) for number in range(now - HOURS + 1, now + 1)]

    def forget(self, tenant: str, model: str) -> None:
        """An adapter was removed."""
        self._hours.pop((tenant, model), None)


def _now() -> int:
    return int(time.time()) // SECONDS
