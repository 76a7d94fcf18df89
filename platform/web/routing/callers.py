"""RecentCallers: how many callers an adapter had in the last day, as far as a share by caller has to know."""

import time
from collections.abc import Callable
from typing import Final

from loraplex.registry.adapters.routes import CALLER, Route

from ..units import count_words

DAY_SECONDS: Final = 24 * 3600.0
MOST: Final = 50
"""Callers that are remembered of an adapter; beyond these a share by caller is as good as one by request."""
FEW: Final = 10
"""With fewer callers, one of them is a larger share than most candidates get."""


class RecentCallers:
    """End users where requests name them, else keys and logins, of this process. The ledger knows keys and logins only,
    but also those of other processes and of before the start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, str], dict[int, float]] = {}
        """Tenant and adapter -> hash of each caller, the latest last, and when it last asked."""

    def note(self, tenant: str, adapter: str, caller: str) -> None:
        place, key = (tenant, adapter), hash(caller)
        if place not in self._seen:
            self._drop_old()
        seen = self._seen.setdefault(place, {})
        seen.pop(key, None)
        seen[key] = self._clock()
        if len(seen) > MOST:
            del seen[next(iter(seen))]

    def count(self, tenant: str, adapter: str) -> int:
        first = self._clock() - DAY_SECONDS
        return sum(at >= first for at in list(self._seen.get((tenant, adapter), {}).values()))

    def _drop_old(self) -> None:
        first = self._clock() - DAY_SECONDS
        self._seen = {place: seen for place, seen in self._seen.items() if max(seen.values()) >= first}


def few_callers_words(callers: int) -> str:
    """Why a share by caller means little with so many; empty where it means something."""
    if callers >= FEW:
        return ""
    asked = count_words(callers, "caller") if callers else "no caller"
    return (
        f"Only {asked} asked in the last day. A caller gets one version for all of its requests, so the actual share "
        "can be far from this one. Share by request instead."
    )


def share_warning(route: Route, callers: int) -> str:
    """The same of a route as it is."""
    is_shared = any(0 < weight < 100 for weight in route.weights.values())
    return few_callers_words(callers) if route.share_by == CALLER and is_shared else ""
