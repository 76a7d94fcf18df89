"""The live state of the dashboard as one JSON document: engine, traffic, KV blocks, residency."""

import base64
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from loraplex.engine.protocol import AdapterStatus, EngineInfo, EngineStatus

from ..state import State
from ..units import count_words, percent_words, size_words
from .cache_history import CacheHistory
from .residency import idle_words, next_out
from .tiers import tiers, used_blocks
from .traffic import NONE, Traffic
from .words import (
    ON_DISK,
    OTHER,
    TONES,
    activity_words,
    engine_words,
    residency_words,
    tile_words,
)

WAITING: Final = "Waiting for the engine."
FIRST_ADAPTER: Final = 3
KINDS: Final = 250
"""The block map says `FIRST_ADAPTER + place % KINDS` of the adapter at `place`."""


def live_state(state: State, traffic: Traffic, cache: CacheHistory, tenant: str) -> dict[str, Any]:
    """As `tenant` may see it: adapters of others have no name."""
    status, info = state.engine.status, state.engine.info
    names = names_by_digest(state, tenant)
    return {
        "engine": _engine(state, status),
        "traffic": traffic.figures(),
        "cache": cache.points(),
        "tiers": tiers(status, info),
        "blocks": _blocks(status, info, names),
        "residency": residency_of(state, tenant),
    }


def residency_of(state: State, tenant: str) -> dict[str, Any]:
    """Which adapters are in memory; pages show it in their first answer too."""
    names, references = names_by_digest(state, tenant), _references(state, tenant)
    return _residency(state.engine.status, state.engine.info, names, references)


def names_by_digest(state: State, tenant: str) -> dict[str, str]:
    adapters = state.registry.snapshots.current.of_tenant(tenant)
    return {version.digest: adapter.name for adapter in adapters for version in adapter.versions}


def _references(state: State, tenant: str) -> dict[str, str]:
    """digest -> name@version."""
    adapters = state.registry.snapshots.current.of_tenant(tenant)
    return {one.digest: f"{adapter.name}@{one.number}" for adapter in adapters for one in adapter.versions}


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


def _blocks(status: EngineStatus | None, info: EngineInfo | None, names: Mapping[str, str]) -> dict[str, Any]:
    if status is None or info is None:
        return {"map": "", "legend": {}, "sentence": WAITING, "used": NONE, "hits": NONE, "shared": NONE}
    used = used_blocks(status)
    return {
        "map": base64.b64encode(status.block_map).decode(),
        "block_size": info.block_size,
        "legend": _legend(status, names),
        "used": percent_words(used / info.num_blocks),
        "hits": percent_words(status.prefix_hits / status.prefix_queries, 0) if status.prefix_queries else NONE,
        "shared": f"{status.prefix_hits:,} of {status.prefix_queries:,}",
        "sentence": f"{used:,} of {info.num_blocks:,} blocks in use.",
    }


def _legend(status: EngineStatus, names: Mapping[str, str]) -> dict[int, str]:
    """Byte of the block map -> the adapter it stands for. Running ones come first where two share a byte."""
    legend: dict[int, str] = {}
    present = set(status.block_map)
    places = sorted(range(len(status.adapters)), key=lambda place: not status.adapters[place].running)
    for place in places:
        kind = _kind(place)
        if kind in present:
            legend.setdefault(kind, _label(status.adapters[place], names))
    return legend


def _kind(place: int) -> int:
    return FIRST_ADAPTER + place % KINDS


def _residency(
    status: EngineStatus | None, info: EngineInfo | None, names: Mapping[str, str], references: Mapping[str, str]
) -> dict[str, Any]:
    on_disk = {"words": ON_DISK, "tone": ""}
    if status is None or info is None:
        return {"sentence": WAITING, "share": 0, "states": None, "on_disk": on_disk, "tiles": []}
    resident = [(place, adapter) for place, adapter in enumerate(status.adapters) if adapter.state == "resident"]
    here = Counter(names.get(adapter.digest) for _, adapter in resident)
    labels = {
        adapter.digest: references.get(adapter.digest, name) if here[name] > 1 else name
        for _, adapter in resident
        if (name := names.get(adapter.digest)) is not None
    }
    return {
        "sentence": _memory_sentence([adapter for _, adapter in resident], status, info, labels),
        "share": round(status.adapter_bytes_used / info.adapter_memory, 4) if info.adapter_memory else 0,
        "states": {
            adapter.digest: {"words": residency_words(adapter), "tone": TONES[adapter.state]}
            for adapter in status.adapters
            if adapter.digest in names and (adapter.state != "registered" or adapter.tier != "disk")
        },
        "on_disk": on_disk,
        "tiles": [_tile(place, adapter, names, labels) for place, adapter in resident],
    }


def _tile(place: int, adapter: AdapterStatus, names: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, Any]:
    """`labels`: name@version, where two of a name are in memory."""
    return {
        "label": _label(adapter, labels),
        "name": names.get(adapter.digest),
        "words": tile_words(adapter),
        "activity": activity_words(adapter),
        "busy": adapter.running > 0,
        "kind": _kind(place),
    }


def _memory_sentence(
    resident: list[AdapterStatus], status: EngineStatus, info: EngineInfo, names: Mapping[str, str]
) -> str:
    if not status.adapters:
        return "No adapters registered."
    total = count_words(len(status.adapters), "adapter")
    sizes = f"{size_words(status.adapter_bytes_used)} of {size_words(info.adapter_memory)}"
    if not resident:
        return f"0 of {total} in memory, {sizes}. Each loads on its first request."
    return f"{len(resident)} of {total} in memory, {sizes}.{_next_out(resident, names)}"


def _next_out(resident: list[AdapterStatus], names: Mapping[str, str]) -> str:
    oldest = next_out(resident)
    return "" if oldest is None else f" Next to be evicted: {_label(oldest, names)} ({idle_words(oldest)})."


def _label(adapter: AdapterStatus, names: Mapping[str, str]) -> str:
    return names.get(adapter.digest, OTHER)
