"""The adapter memory as the cache page shows it: what the engine says of each adapter, beside its name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loraplex.engine.status import AdapterStatus

from ...access.caller import Caller
from ...management.engine_view import status_for
from ...observability.kv_cache import dtype_words, held_states, tokens
from ...state import State
from ...units import count_words, size_words
from ..figures.known_adapters import Known, known_adapters
from ..figures.residency import idle_seconds, idle_words, next_out
from ..words import OTHER, TONES, residency_words

NOTHING: Final = "–"
ORDER: Final = tuple(TONES)


@dataclass(frozen=True, slots=True)
class CacheRow:
    """`reference` is what load and evict are asked for, `pin_reference` what is pinned or would be."""

    digest: str
    page: str
    label: str
    tenant: str
    """Whose it is, where it is not the caller's own."""
    reference: str
    pin_reference: str
    words: str
    tone: str
    can_load: bool
    can_evict: bool
    pinned: bool
    leaves_next: bool
    size: str
    pages: str
    use: str
    waiting: str
    loads: int
    load_time: str
    evictions: int
    evicted_for: str


@dataclass(frozen=True, slots=True)
class CacheView:
    """`share`: percent of the adapter memory in use, `host_share` of the host cache. `hidden`: adapters that have no
    row because there are too many."""

    rows: Sequence[CacheRow]
    hidden: int
    resident: int
    total: int
    used: str
    capacity: str
    share: float
    host: int
    host_used: str
    host_capacity: str
    """Empty where there is no host cache."""
    host_share: float
    kv_tokens: str
    """That fit in the KV cache; `kv_words`: its dtype and size."""
    kv_words: str
    states: str
    """Recurrent states that requests hold, in words; empty for a model without recurrent layers."""
    state_words: str
    """How many there are, their size, and the snapshots among them."""
    pinned: int
    evictions: int
    """Of all adapters since the engine's start, so that it never falls when one goes."""
    next_name: str | None
    next_idle: str


def cache_view(state: State, caller: Caller, most: int) -> CacheView | None:
    """None while the engine has not said anything."""
    status, info = status_for(state, caller), state.engine.info
    if status is None or info is None:
        return None
    owners = known_adapters(state.snapshots, caller)
    known = sorted((one for one in status.adapters if one.digest in owners), key=_place)
    leaving = next_out(known)
    used, capacity = status.adapter_bytes_used, info.adapter_memory
    snapshots = count_words(status.cached_states, "snapshot")
    host_used, host_capacity = status.adapter_host_bytes_used, info.adapter_host_memory
    return CacheView(
        rows=[_row(one, owners, one is leaving) for one in known[:most]],
        hidden=max(0, len(known) - most),
        resident=sum(one.state == "resident" for one in known),
        total=len(known),
        used=size_words(used),
        capacity=size_words(capacity),
        share=_percent(used, capacity),
        host=sum(one.host_bytes > 0 for one in known),
        host_used=size_words(host_used),
        host_capacity=size_words(host_capacity) if host_capacity else "",
        host_share=_percent(host_used, host_capacity),
        kv_tokens=f"{tokens(info):,}",
        kv_words=f"{dtype_words(info)}, {size_words(info.kv_cache_bytes)}",
        states=f"{held_states(info, status):,}" if info.num_states else "",
        state_words=f"of {info.num_states:,} in {size_words(info.state_bytes)}, {snapshots} kept",
        pinned=sum(one.pinned for one in known),
        evictions=status.adapter_evictions,
        next_name=_name(owners[leaving.digest]) if leaving else None,
        next_idle=idle_words(leaving) if leaving else "",
    )


def _percent(used: int, capacity: int) -> float:
    return round(100 * used / max(1, capacity), 1)


def _place(status: AdapterStatus) -> tuple[int, bool, bool, float]:
    """In memory first; there the busy ones, then by last use, so that who leaves next stands last. The host cache comes
    before the disk."""
    return ORDER.index(status.state), status.tier == "disk", not status.running, idle_seconds(status)


def _row(status: AdapterStatus, owners: Mapping[str, Known], leaves_next: bool) -> CacheRow:
    known = owners[status.digest]
    adapter, version = known.adapter, known.version
    name = adapter.name if version is adapter.current() else f"{adapter.name}@{version.number}"
    pinned = adapter.pins(version)
    return CacheRow(
        digest=status.digest,
        page=known.path,
        label=_name(known),
        tenant=known.elsewhere,
        reference=name,
        pin_reference=f"{adapter.name}@{version.number}" if version.pinned else name,
        words=residency_words(status),
        tone=TONES[status.state],
        can_load=status.state in ("registered", "failed"),
        can_evict=status.state == "resident" and not pinned,
        pinned=pinned,
        leaves_next=leaves_next,
        size=size_words(status.bytes) if status.pages else NOTHING,
        pages=count_words(status.pages, "page") if status.pages else "",
        use=_use(status),
        waiting=f"{status.waiting} waiting" if status.waiting else "",
        loads=status.loads,
        load_time=_load_words(status),
        evictions=status.evictions,
        evicted_for=_cause(status, owners),
    )


def _name(known: Known) -> str:
    return known.label if known.version is known.adapter.current() else known.reference


def _use(status: AdapterStatus) -> str:
    if status.running:
        return f"{status.running} running"
    return NOTHING if status.last_used_seconds_ago is None else idle_words(status)


def _load_words(status: AdapterStatus) -> str:
    if status.load_seconds is None:
        return ""
    start = f"{status.host_loads} from host, last" if status.host_loads else "last took"
    return f"{start} {1000 * status.load_seconds:.0f} ms"


def _cause(status: AdapterStatus, owners: Mapping[str, Known]) -> str:
    """Why it left last; the engine names nobody when it was asked to leave."""
    if not status.evictions:
        return ""
    if status.evicted_for is None:
        return "Last eviction: manual"
    winner = owners.get(status.evicted_for)
    return f"Last eviction: for {_name(winner) if winner else OTHER}"
