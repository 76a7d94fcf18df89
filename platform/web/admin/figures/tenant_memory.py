"""Whose memory it is: what each tenant's adapters and requests hold, for who oversees the server."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from loraplex.engine.status import AdapterStatus, TenantStatus

from ...access.caller import Caller
from ...state import State
from ...units import size_words


@dataclass(frozen=True, slots=True)
class TenantMemory:
    """`share`: of the adapter memory, in percent. Bytes that two tenants have alike count for each."""

    tenant: str
    resident: int
    pinned: int
    used: str
    share: float
    host: str
    running: int
    waiting: int
    blocks: str


def tenant_memory(state: State, caller: Caller) -> Sequence[TenantMemory]:
    """Those that hold or want anything, with most first; none where there is but one tenant."""
    status, info, snapshot = state.engine.status, state.engine.info, state.snapshots.current
    if status is None or info is None or not caller.oversees or len(snapshot.tenants) < 2:
        return ()
    statuses, held = {one.digest: one for one in status.adapters}, defaultdict[str, list[AdapterStatus]](list)
    for tenant, adapters in snapshot.adapters.items():
        digests = {version.digest for adapter in adapters.values() for version in adapter.versions}
        held[tenant] = [statuses[digest] for digest in digests & statuses.keys()]
    rows = {
        tenant: (_bytes(held[tenant]), _row(tenant, held[tenant], status.tenants.get(tenant), info.adapter_memory))
        for tenant in snapshot.tenants
    }
    busy = [row for row in rows.values() if row[0] or row[1].running or row[1].waiting or row[1].host != size_words(0)]
    return [row for _, row in sorted(busy, key=lambda pair: (-pair[0], pair[1].tenant))]


def _bytes(adapters: Sequence[AdapterStatus]) -> int:
    return sum(one.bytes for one in adapters if one.state == "resident")


def _row(tenant: str, adapters: Sequence[AdapterStatus], requests: TenantStatus | None, memory: int) -> TenantMemory:
    now, used = requests or TenantStatus(), _bytes(adapters)
    return TenantMemory(
        tenant=tenant,
        resident=sum(one.state == "resident" for one in adapters),
        pinned=sum(one.pinned for one in adapters),
        used=size_words(used),
        share=round(100 * used / max(1, memory), 1),
        host=size_words(sum(one.host_bytes for one in adapters)),
        running=now.running,
        waiting=now.waiting,
        blocks=f"{now.blocks:,}",
    )
