"""Which adapters a list shows, and in which order: a word, a state, a column."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from loraplex.engine.status import AdapterStatus
from loraplex.registry.adapters.views import Adapter, Version

from ...adapters.reconciler import Reconciler
from ...api.views import residency
from ...observability.hourly_use import SECONDS
from ...observability.metrics import Metrics
from ...state import State
from .adapter_rows import obstacle_of, shown_version

TIERS: Final = ("device", "host", "disk")
FILTERS: Final = {
    "": "All states",
    "device": "In memory",
    "host": "In host cache",
    "disk": "On disk",
    "pinned": "Pinned",
    "disabled": "Disabled",
    "failed": "Failed",
}
ORDERS: Final = {
    "": "By name",
    "used": "Last used",
    "requests": "Most requests, 24 h",
    "size": "Largest",
    "added": "Newest",
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """An adapter with the version that its row tells of, and what the engine says of that."""

    adapter: Adapter
    version: Version
    status: AdapterStatus | None


def matching(state: State, tenant: str, search: str, show: str = "", order: str = "") -> list[Adapter]:
    """Adapters whose name contains `search`, or whose digest begins with it; `show` and `order` as above."""
    wanted, statuses = search.strip().lower(), residency(state)
    pairs = ((adapter, shown_version(adapter)) for adapter in state.snapshots.current.of_tenant(tenant))
    found = [
        Candidate(adapter, version, statuses.get(version.digest))
        for adapter, version in pairs
        if wanted in adapter.name or version.digest.startswith(wanted)
    ]
    if show and show in FILTERS:
        found = [one for one in found if _is_shown(state.reconciler, one, show)]
    key = _order_key(state.metrics, order)
    return [one.adapter for one in (found if key is None else sorted(found, key=key))]


def _is_shown(reconciler: Reconciler, one: Candidate, show: str) -> bool:
    if show == "pinned":
        return one.adapter.pinned or any(version.pinned for version in one.adapter.versions)
    if show in TIERS and (one.status.tier if one.status else "disk") != show:
        return False
    obstacle = obstacle_of(reconciler, one.adapter, one.version)
    if show == "disabled":
        return obstacle is not None and obstacle[1] == "warn"
    if show == "failed":
        return (obstacle is not None and obstacle[1] == "bad") or (
            one.status is not None and one.status.state == "failed"
        )
    return obstacle is None


def _order_key(metrics: Metrics, order: str) -> Callable[[Candidate], float] | None:
    """None: they are by name already."""
    hours = metrics.hours
    keys: dict[str, Callable[[Candidate], float]] = {
        "used": lambda one: _idle(metrics, one.adapter),
        "requests": lambda one: -hours.requests(one.adapter.tenant, one.adapter.name),
        "size": lambda one: -one.version.size,
        "added": lambda one: -one.version.created_at.timestamp(),
    }
    return keys.get(order)


def _idle(metrics: Metrics, adapter: Adapter) -> float:
    """Seconds. From before the server's start only the hour is known: its middle."""
    since = metrics.use.seconds_since(adapter.tenant, adapter.name)
    if since is not None:
        return since
    hours = metrics.hours.hours_since_use(adapter.tenant, adapter.name)
    return float("inf") if hours is None else SECONDS * (hours + 0.5)
