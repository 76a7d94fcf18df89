"""GuardKeeper: takes a candidate out of its route when it breaks the guard's limits. It never puts one back."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from loraplex.registry.adapters.routes import Guard, Route
from loraplex.registry.errors import RegistryError
from loraplex.registry.registry import Registry
from loraplex.registry.snapshot import Snapshot

from ..adapters.reconciler import Reconciler
from ..http.database_errors import log_failure
from .tallies import Lane, Tallies
from .verdict import Breach, judge

LOOK_SECONDS: Final = 1.0

logger = logging.getLogger(__name__)


class GuardKeeper:
    """Each process judges by the requests it has served; the database lets one of them write, once."""

    def __init__(self, registry: Registry, tallies: Tallies, reconciler: Reconciler) -> None:
        self._registry, self._tallies, self._reconciler = registry, tallies, reconciler

    async def run(self) -> None:
        """Look for ever. A database that is away is waited for."""
        away = False
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
                away = False
            except Exception as error:
                if not away:
                    log_failure(logger, "a guard cannot act now; it tries again", error)
                away = True

    async def look(self) -> None:
        """Take out every candidate that breaks its guard now."""
        snapshot = self._registry.snapshots.current
        self._tallies.keep([lane for lane in self._tallies.lanes if _is_routed(snapshot, lane)])
        breaches = await asyncio.to_thread(lambda: list(self._breaches(snapshot)))
        for lane, guard, breach in breaches:
            await self._trip(lane, guard, breach)

    def _breaches(self, snapshot: Snapshot) -> Iterator[tuple[Lane, Guard, Breach]]:
        for lane in self._tallies.lanes:
            route = route_of(snapshot, lane)
            if route is None or route.guard is None or lane.since is None or lane.shadow:
                continue
            window = route.guard.window_seconds
            stable = Lane(lane.tenant, lane.adapter, lane.alias, route.stable)
            found = self._tallies.figures(lane, window), self._tallies.figures(stable, window)
            breach = judge(route.guard, lane.version, *found)
            if breach is not None:
                yield lane, route.guard, breach

    async def _trip(self, lane: Lane, guard: Guard, breach: Breach) -> None:
        assert lane.since is not None
        place = lane.adapter, lane.alias, lane.version, lane.since, breach.reason, breach.figures
        try:
            trip = self._registry.adapters.routes.trip
            acted = await asyncio.to_thread(trip, *place, guard=guard, tenant=lane.tenant)
        except RegistryError:
            return  # the alias was removed meanwhile
        if acted:
            logger.warning("%s@%s: %s It has no callers any more.", lane.adapter, lane.alias, breach.reason)
        await self._reconciler.reconcile()


def route_of(snapshot: Snapshot, lane: Lane) -> Route | None:
    adapter = snapshot.adapters.get(lane.tenant, {}).get(lane.adapter)
    return None if adapter is None else adapter.routes.get(lane.alias)


def _is_routed(snapshot: Snapshot, lane: Lane) -> bool:
    """Whether figures of it are still worth something."""
    route = route_of(snapshot, lane)
    if route is None or not route.candidates:
        return False
    if lane.since is None:
        return lane.version == route.stable
    return any(
        (one.version, one.since) == (lane.version, lane.since) and (one.shadow if lane.shadow else one.weight)
        for one in route.candidates
    )
