"""The live state of the dashboard as one JSON document: engine, traffic, KV blocks, residency."""

import base64
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final

from loraplex.engine.protocol import EngineInfo, EngineStatus
from loraplex.engine.status import AdapterStatus

from ...access.caller import Caller
from ...management.engine_view import kind_of, status_for
from ...state import State
from ...units import count_words, percent_words, size_words
from ..words import ON_DISK, OTHER, TONES, activity_words, engine_words, residency_words, tile_words
from .cache_history import CacheHistory
from .known_adapters import Known, known_adapters
from .residency import idle_words, next_out
from .tiers import tiers, used_blocks
from .traffic import NONE, Traffic

Adapters = Mapping[str, Known]
"""By digest."""
WAITING: Final = "Waiting for the engine."


def live_state(state: State, traffic: Traffic, cache: CacheHistory, caller: Caller) -> dict[str, Any]:
    """As the caller may see it: of other tenants nothing, for all but who oversees the server."""
    status, info = status_for(state, caller), state.engine.info
    known = known_adapters(state.snapshots, caller)
    return {
        "engine": _engine(state, status),
        "traffic": traffic.figures(),
        "cache": cache.points() if caller.oversees else cache.points_of(caller.tenant, known),
        "tiers": tiers(status, info),
        "blocks": _blocks(status, info, known),
        "residency": _residency(status, info, known),
    }


def residency_of(state: State, caller: Caller) -> dict[str, Any]:
    """Which adapters are in memory; pages show it in their first answer too."""
    return _residency(status_for(state, caller), state.engine.info, known_adapters(state.snapshots, caller))


def _engine(state: State, status: EngineStatus | None) -> dict[str, Any]:
    words, tone = engine_words(state)
    facts: dict[str, Any] = {"words": words, "tone": tone, "restarts": state.engine.restarts}
    if status is None:
        return facts | dict.fromkeys(("running", "waiting", "preemptions", "host_share"), NONE)
    share = status.host_seconds / status.step_seconds if status.step_seconds else None
    return facts | {
        "running": status.running,
        "waiting": status.waiting,
        "preemptions": status.preemptions,
        "host_share": NONE if share is None else percent_words(share),
    }


def _blocks(status: EngineStatus | None, info: EngineInfo | None, known: Adapters) -> dict[str, Any]:
    if status is None or info is None:
        return {"map": "", "legend": {}, "sentence": WAITING, "used": NONE, "hits": NONE, "shared": NONE}
    used = used_blocks(status)
    return {
        "map": base64.b64encode(status.block_map).decode(),
        "block_size": info.block_size,
        "legend": _legend(status, known),
        "used": percent_words(used / max(1, info.num_blocks)),
        "hits": percent_words(status.prefix_hits / status.prefix_queries, 0) if status.prefix_queries else NONE,
        "shared": f"{status.prefix_hits:,} of {status.prefix_queries:,}",
        "sentence": f"{used:,} of {info.num_blocks:,} blocks in use.",
    }


def _legend(status: EngineStatus, known: Adapters) -> dict[int, str]:
    """Byte of the block map -> the adapter it stands for. Running ones come first where two share a byte."""
    legend: dict[int, str] = {}
    present = set(status.block_map)
    places = sorted(range(len(status.adapters)), key=lambda place: not status.adapters[place].running)
    for place in places:
        kind = kind_of(place)
        if kind in present:
            legend.setdefault(kind, _label(status.adapters[place], known))
    return legend


def _residency(status: EngineStatus | None, info: EngineInfo | None, known: Adapters) -> dict[str, Any]:
    on_disk = {"words": ON_DISK, "tone": ""}
    if status is None or info is None:
        return {"sentence": WAITING, "share": 0, "states": None, "on_disk": on_disk, "tiles": []}
    resident = [(place, adapter) for place, adapter in enumerate(status.adapters) if adapter.state == "resident"]
    here = Counter(known[adapter.digest].label for _, adapter in resident if adapter.digest in known)
    doubled = {label for label, count in here.items() if count > 1}
    return {
        "sentence": _memory_sentence([adapter for _, adapter in resident], status, info, known),
        "share": round(status.adapter_bytes_used / info.adapter_memory, 4) if info.adapter_memory else 0,
        "states": {
            adapter.digest: {"words": residency_words(adapter), "tone": TONES[adapter.state]}
            for adapter in status.adapters
            if adapter.digest in known and (adapter.state != "registered" or adapter.tier != "disk")
        },
        "on_disk": on_disk,
        "tiles": [_tile(place, adapter, known.get(adapter.digest), doubled) for place, adapter in resident],
    }


def _tile(place: int, adapter: AdapterStatus, known: Known | None, doubled: Collection[str]) -> dict[str, Any]:
    """`doubled`: labels that two in memory have; they are told apart by their versions."""
    label = OTHER if known is None else known.reference if known.label in doubled else known.label
    return {
        "label": label,
        "path": "" if known is None else known.path,
        "words": tile_words(adapter),
        "activity": activity_words(adapter),
        "busy": adapter.running > 0,
        "kind": kind_of(place),
    }


def _memory_sentence(resident: list[AdapterStatus], status: EngineStatus, info: EngineInfo, known: Adapters) -> str:
    if not status.adapters:
        return "No adapters registered."
    total = count_words(len(status.adapters), "adapter")
    sizes = f"{size_words(status.adapter_bytes_used)} of {size_words(info.adapter_memory)}"
    if not resident:
        return f"0 of {total} in memory, {sizes}. Each loads on its first request."
    return f"{len(resident)} of {total} in memory, {sizes}.{_next_out(resident, known)}"


def _next_out(resident: list[AdapterStatus], known: Adapters) -> str:
    oldest = next_out(resident)
    return "" if oldest is None else f" Next to be evicted: {_label(oldest, known)} ({idle_words(oldest)})."


def _label(adapter: AdapterStatus, known: Adapters) -> str:
    found = known.get(adapter.digest)
    return OTHER if found is None else found.label
