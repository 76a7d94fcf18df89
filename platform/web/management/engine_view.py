"""What a tenant may know of the engine: its own adapters and requests, and of all others how full the memory is."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from loraplex.engine.protocol import EngineStatus
from loraplex.engine.status import AdapterStatus, TenantStatus
from loraplex.registry.adapters.views import Adapter

from ..access.caller import Caller
from ..observability.adapter_use import AdapterUse
from ..state import State

BASE = 2
FIRST_ADAPTER = 3
KINDS = 250
"""The block map says `FIRST_ADAPTER + place % KINDS` of the adapter at `place`."""


def kind_of(place: int) -> int:
    """Its byte in the block map."""
    return FIRST_ADAPTER + place % KINDS


class OwnUse(NamedTuple):
    """Of one adapter's bytes, under the names that a tenant gave them: others may have the same."""

    running: int
    seconds_since: float | None
    """Since its last request ended; None: there was none."""


UNUSED: Final = OwnUse(0, None)


def status_for(state: State, caller: Caller) -> EngineStatus | None:
    """The whole of it for who oversees the server. None while the engine is away."""
    status = state.engine.status
    if status is None or caller.oversees:
        return status
    adapters = state.registry.snapshots.current.of_tenant(caller.tenant)
    return of_tenant(status, caller.tenant, _uses(state.metrics.use, caller.tenant, adapters))


def _uses(use: AdapterUse, tenant: str, adapters: Sequence[Adapter]) -> dict[str, OwnUse]:
    """By digest. Of thousands of adapters few were used, and this runs at each update of a page."""
    uses = {version.digest: UNUSED for adapter in adapters for version in adapter.versions}
    for adapter in adapters:
        since = use.seconds_since(tenant, adapter.name)
        if since is None:
            continue
        for version in adapter.versions:
            running, known = uses[version.digest]
            latest = since if known is None else min(since, known)
            uses[version.digest] = OwnUse(running + use.running(tenant, adapter.name, version.number), latest)
    return uses


def of_tenant(status: EngineStatus, tenant: str, uses: Mapping[str, OwnUse]) -> EngineStatus:
    """`uses`: of its adapters, by digest. Blocks that other adapters hold look like the base's."""
    own = status.tenants.get(tenant, TenantStatus())
    adapters = [
        replace(one, running=use.running, last_used_seconds_ago=use.seconds_since)
        for one in status.adapters
        if (use := uses.get(one.digest)) is not None
    ]
    return replace(
        status,
        running=own.running,
        waiting=own.waiting,
        block_map=_own_blocks(status, adapters),
        adapters=adapters,
        tenants={tenant: own},
        adapter_bytes_used=sum(one.bytes for one in adapters if one.state == "resident"),
        adapter_host_bytes_used=sum(one.host_bytes for one in adapters),
        adapter_evictions=sum(one.evictions for one in adapters),
        prefix_queries=own.prefix_queries,
        prefix_hits=own.prefix_hits,
        preemptions=0,
    )


def _own_blocks(status: EngineStatus, own: list[AdapterStatus]) -> bytes:
    """Running ones give a byte its meaning where two share it."""
    table = bytearray(min(kind, BASE) for kind in range(256))
    places = {one.digest: place for place, one in enumerate(status.adapters)}
    for new, one in sorted(enumerate(own), key=lambda entry: entry[1].running > 0):
        table[kind_of(places[one.digest])] = kind_of(new)
    return status.block_map.translate(bytes(table))
