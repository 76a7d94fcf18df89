"""HourlyUse: what each model served in each of the last 24 hours; the base is one of them."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from loraplex.registry.snapshot import Snapshot
from loraplex.registry.usage.usage import HourOfUse

HOURS: Final = 24
SECONDS: Final = 3600


@dataclass(slots=True)
class Hour:
    requests: int = 0
    errors: int = 0
    tokens: int = 0
    """Made for requests that ended in it."""


class HourlyUse:
    """Bounded: at most 24 entries for each name that serves. Counts what this process serves, and what the ledger had
    booked before it started."""

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

    def restore(self, booked: Iterable[HourOfUse], snapshot: Snapshot) -> None:
        """At the start: of the adapters that are there, versions that were removed left out."""
        first = _now() - HOURS
        known = {
            (adapter.tenant, adapter.name, version.digest)
            for adapters in snapshot.adapters.values()
            for adapter in adapters.values()
            for version in adapter.versions
        }
        for one in booked:
            number = one.begin // SECONDS
            if number > first and (one.tenant, one.adapter, one.digest) in known:
                hour = self._hours.setdefault((one.tenant, one.adapter), {}).setdefault(number, Hour())
                hour.requests += one.requests
                hour.errors += one.errors
                hour.tokens += one.completion_tokens

    def hours_since_use(self, tenant: str, model: str) -> int | None:
        """How many hours have begun since the hour of its last request; None: there was none in the last 24."""
        now = _now()
        return min(
            (now - number for number in self._hours.get((tenant, model), ()) if number > now - HOURS), default=None
        )

    def requests(self, tenant: str, model: str) -> int:
        """In the last 24 hours, this one included."""
        first = _now() - HOURS
        return sum(hour.requests for number, hour in self._hours.get((tenant, model), {}).items() if number > first)

    def of(self, tenant: str, model: str) -> Sequence[tuple[int, Hour]]:
        """The last 24 hours, oldest first, each with the Unix time it began."""
        hours, now = self._hours.get((tenant, model), {}), _now()
        return [(number * SECONDS, hours.get(number, Hour())) for number in range(now - HOURS + 1, now + 1)]

    def knows(self, tenant: str, model: str) -> bool:
        return (tenant, model) in self._hours

    def forget(self, tenant: str, model: str) -> None:
        """An adapter was removed."""
        self._hours.pop((tenant, model), None)


def hour_begun(hours_ago: int) -> datetime:
    """When the hour began that is so many before this one."""
    return datetime.fromtimestamp((_now() - hours_ago) * SECONDS, UTC)


def first_day() -> str:
    """That has one of the last 24 hours, in UTC."""
    return hour_begun(HOURS - 1).date().isoformat()


def _now() -> int:
    return int(time.time()) // SECONDS
