"""Which adapters a list shows, and in which order: a word, a state, a column."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from loraplex.engine.protocol import AdapterStatus
from loraplex.registry.views import Adapter

from ..api.views import residency
from ..state import State
from .adapter_rows import obstacle_of, shown_version
from .residency import idle_seconds

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
Statuses = Mapping[str, AdapterStatus]


def matching(state: State, tenant: str, search: str, show: str = "", order: str = "") -> list[Adapter]:
    """Adapters whose name contains `search`, or whose digest begins with it; `show` and `order` as above."""
    wanted, statuses = search.strip().lower(), residency(state)
    adapters = state.registry.snapshots.current.of_tenant(tenant)
    found = [one for one in adapters if wanted in one.name or shown_version(one).digest.startswith(wanted)]
    if show in FILTERS and show:
        found = [one for one in found if _is_shown(state, one, show, statuses)]
    key = _order_key(state, order, statuses)
    return found if key is None else sorted(found, key=key)


def _is_shown(state: State, adapter: Adapter, show: str, statuses: Statuses) -> bool:
    if show == "pinned":
        return adapter.pinned or any(version.pinned for version in adapter.versions)
    obstacle, status = obstacle_of(state, adapter, shown_version(adapter)), _status(adapter, statuses)
    if show == "disabled":
        return obstacle is not None and obstacle[1] == "warn"
    failed = (obstacle is not None and obstacle[1] == "bad") or (status is not None and status.state == "failed")
    if show == "failed":
        return failed
    return obstacle is None and (status.tier if status else "disk") == show


def _order_key(state: State, order: str, statuses: Statuses) -> Callable[[Adapter], Any] | None:
    """None: they are by name already."""
    hours = state.metrics.hours
    keys: dict[str, Callable[[Adapter], Any]] = {
        "used": lambda one: _idle(_status(one, statuses)),
        "requests": lambda one: -hours.requests(one.tenant, one.name),
        "size": lambda one: -shown_version(one).size,
        "added": lambda one: -shown_version(one).created_at.timestamp(),
    }
    return keys.get(order)


def _status(adapter: Adapter, statuses: Statuses) -> AdapterStatus | None:
    return statuses.get(shown_version(adapter).digest)


def _idle(status: AdapterStatus | None) -> float:
    return float("inf") if status is None else 0.0 if status.running else idle_seconds(status)
