"""What a person should look at now; nothing while all is well."""

import re
from collections.abc import Iterable
from typing import Any, Final

from loraplex.engine.ipc.client import EngineState
from loraplex.registry.snapshot import Snapshots

from ...access.caller import Caller
from ...access.permissions import Permission
from ...management.engine_view import status_for
from ...state import State
from ...units import count_words, size_words
from ..figures.cache_history import CacheHistory
from ..figures.tiers import used_blocks
from ..figures.traffic import Traffic
from .system_facts import free_disk

ERROR_SHARE: Final = 0.02
FULL_SHARE: Final = 0.95
THRASH_SECONDS: Final = 60
THRASH_EVICTIONS: Final = 20
MOST_NAMES: Final = 3
TELL: Final = "Tell the operator."
Item = dict[str, Any]
"""`tone`, `text` and the `path` of the page where more is to be seen, empty for who may not open that."""
QUERY: Final = re.compile("[?#]")


def attention(state: State, traffic: Traffic, cache: CacheHistory, caller: Caller) -> list[Item]:
    """The worst first; of adapters those of the tenant."""
    tenant = caller.tenant
    items = [*_engine(state), *_registry(state), *_adapters(state, tenant), *_routes(state.snapshots, tenant)]
    items += [*_requests(traffic), *_memory(state, cache, caller)]
    return sorted(items, key=lambda item: item["tone"] != "bad")


def for_caller(items: Iterable[Item], caller: Caller) -> list[Item]:
    """All of them in the words for who asks, and no way to a page that would refuse the caller."""
    return [_for_caller(item, caller) for item in items]


def _for_caller(item: Item, caller: Caller) -> Item:
    hint = item["to_operator" if caller.allows(Permission.OPERATE) else "to_others"]
    path = item["path"] if caller.may(f"GET {QUERY.split(item['path'])[0]}") else ""
    return {"tone": item["tone"], "text": f"{item['text']} {hint}".strip(), "path": path}


def _item(tone: str, text: str, path: str, to_operator: str = "", to_others: str = "") -> Item:
    """`to_operator`, `to_others`: what more to say to whom; only the operator can look at the server or change it."""
    return {"tone": tone, "text": text, "path": path, "to_operator": to_operator, "to_others": to_others}


def _engine(state: State) -> list[Item]:
    if state.start_error is not None:
        return [_item("bad", "The engine could not start.", "/system", f"Why: {state.start_error}", TELL)]
    if state.engine.state is EngineState.READY and not state.engine.ready():
        return [_item("bad", "The engine is not responding. It will be restarted if it stays silent.", "/system")]
    if state.engine.restarts:
        times = count_words(state.engine.restarts, "time")
        words = f"The engine has restarted {times} since the server started."
        return [_item("warn", words, "/system", "The log says why.")]
    return []


def _registry(state: State) -> list[Item]:
    items = []
    if (obstacle := state.database_watch.obstacle()) is not None:
        words = f"{obstacle[0].upper()}{obstacle[1:]}. Serving continues from the last known state."
        items.append(_item("bad", words, "/system"))
    free, floor = free_disk(state.settings), int(state.settings.min_free_bytes)
    if free < 2 * floor:
        words = f"The data folder's disk has {size_words(free)} left; uploads stop at {size_words(floor)}."
        items.append(_item("bad" if free < floor else "warn", words, "/system", to_others=TELL))
    return items


def _adapters(state: State, tenant: str) -> list[Item]:
    statuses = state.engine.status.adapters if state.engine.status else []
    failed = {status.digest for status in statuses if status.state == "failed"} | set(state.reconciler.failures)
    names = sorted(
        adapter.name
        for adapter in state.snapshots.current.of_tenant(tenant)
        if adapter.enabled
        and any(version.enabled and (version.broken or version.digest in failed) for version in adapter.versions)
    )
    if not names:
        return []
    shown = ", ".join(names[:MOST_NAMES]) + (" …" if len(names) > MOST_NAMES else "")
    path = f"/adapters/{names[0]}" if len(names) == 1 else "/adapters?show=failed"
    return [_item("bad", f"{count_words(len(names), 'adapter')} cannot be served: {shown}", path)]


def _routes(snapshots: Snapshots, tenant: str) -> list[Item]:
    """Where a guard has acted, until a person changes the route."""
    return [
        _item(
            "bad",
            f"{adapter.name}@{route.alias} was rolled back. {route.trip.reason}",
            f"/adapters/{adapter.name}#aliases",
        )
        for adapter in snapshots.current.of_tenant(tenant)
        for route in adapter.routes.values()
        if route.trip is not None
    ]


def _requests(traffic: Traffic) -> list[Item]:
    requests, errors = traffic.totals()
    if not errors or errors < ERROR_SHARE * requests:
        return []
    words = f"{errors:,} of {count_words(requests, 'request')} failed in the last 5 min."
    return [_item("bad", words, "/requests?status=error")]


def _memory(state: State, cache: CacheHistory, caller: Caller) -> list[Item]:
    status, items = status_for(state, caller), []
    if status is None:
        return []
    if status.integrity_errors:
        words = "The engine's memory accounting has errors."
        items.append(_item("bad", words, "/system", "Restart the server.", TELL))
    if status.waiting and used_blocks(status) > FULL_SHARE * len(status.block_map):
        words = f"The KV cache is full. Requests waiting for blocks: {status.waiting:,}."
        items.append(_item("warn", words, "/cache"))
    own = None if caller.oversees else {adapter.digest for adapter in status.adapters}
    evictions = cache.evictions(THRASH_SECONDS, own)
    if evictions >= THRASH_EVICTIONS:
        words = f"{evictions:,} adapter evictions in the last minute."
        remedy = "Raise adapter_memory to keep more adapters loaded."
        items.append(_item("warn", words, "/cache", remedy, "Ask the operator for more adapter memory."))
    return items
