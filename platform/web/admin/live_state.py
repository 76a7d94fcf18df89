"""The live state of the dashboard as one JSON document: engine, traffic, KV blocks, residency. Made once a second."""

import base64
import time
from collections.abc import Mapping
from typing import Any

from loraplex.engine.protocol import AdapterStatus, EngineInfo, EngineStatus

from ..metrics import FinishedRequest
from ..state import State
from .words import TONES, residency_words, size_words, span_words, tile_words

RATE_SECONDS = 60.0
LATENCY_SECONDS = 300.0


def live_state(state: State) -> dict[str, Any]:
    status, info = state.engine.status, state.engine.info
    names = _names_by_digest(state)
    return {
        "engine": _engine(state, status),
        "traffic": _traffic(list(state.metrics.recent)),
        "blocks": _blocks(status, info, names),
        "residency": _residency(status, info, names),
    }


def _names_by_digest(state: State) -> dict[str, str]:
    names: dict[str, str] = {}
    for adapter in state.registry.snapshots.current.of_tenant():
        for version in adapter.versions:
            names[version.digest] = adapter.name
    return names


def engine_tone(state: State) -> str:
    return "good" if state.engine.ready() else "bad"


def _engine(state: State, status: EngineStatus | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"state": state.engine.state.value, "tone": engine_tone(state)}
    if status is not None:
        share = status.host_seconds / status.step_seconds if status.step_seconds else 0.0
        facts |= {
            "running": status.running,
            "waiting": status.waiting,
            "preemptions": status.preemptions,
            "host_share": f"{share:.1%}" if status.steps else "–",
        }
    return facts


def _traffic(recent: list[FinishedRequest]) -> dict[str, Any]:
    now = time.time()
    minute = [request for request in recent if now - request.at < RATE_SECONDS]
    firsts = sorted(
        request.first_token
        for request in recent
        if request.first_token is not None and now - request.at < LATENCY_SECONDS
    )
    return {
        "requests_per_minute": len(minute),
        "errors_per_minute": sum(request.status == "error" for request in minute),
        "tokens_per_second": round(sum(request.completion_tokens for request in minute) / RATE_SECONDS, 1),
        "first_token_ms": round(1000 * firsts[int(0.95 * (len(firsts) - 1))]) if firsts else "–",
    }


def _blocks(status: EngineStatus | None, info: EngineInfo | None, names: Mapping[str, str]) -> dict[str, Any]:
    if status is None or info is None:
        return {"map": "", "names": [], "sentence": "Waiting for the engine."}
    used = info.num_blocks - status.free_blocks
    hits = f"{status.prefix_hits / status.prefix_queries:.0%}" if status.prefix_queries else "none yet"
    sentence = (
        f"{used} of {info.num_blocks} blocks in use, {status.cached_blocks} more hold reusable prefixes; "
        f"a block is {info.block_size} tokens. Prompt tokens found in the cache: {hits}."
    )
    return {
        "map": base64.b64encode(status.block_map).decode(),
        "names": [_label(adapter, names) for adapter in status.adapters],
        "sentence": sentence,
    }


def _residency(status: EngineStatus | None, info: EngineInfo | None, names: Mapping[str, str]) -> dict[str, Any]:
    if status is None or info is None:
        return {"sentence": "Waiting for the engine.", "share": 0, "states": {}, "tiles": []}
    resident = [adapter for adapter in status.adapters if adapter.state == "resident"]
    index = {adapter.digest: place for place, adapter in enumerate(status.adapters)}
    sentence = (
        f"{len(resident)} of {len(status.adapters)} adapters in memory, {size_words(status.adapter_bytes_used)} of "
        f"{size_words(info.adapter_memory)}.{_next_out(resident, names)}"
    )
    return {
        "sentence": sentence,
        "share": round(status.adapter_bytes_used / info.adapter_memory, 4) if info.adapter_memory else 0,
        "states": {
            adapter.digest: {"words": residency_words(adapter), "tone": TONES[adapter.state]}
            for adapter in status.adapters
        },
        "tiles": [
            {
                "label": _label(adapter, names),
                "name": names.get(adapter.digest),
                "words": tile_words(adapter),
                "index": index[adapter.digest],
            }
            for adapter in resident
        ],
    }


def _next_out(resident: list[AdapterStatus], names: Mapping[str, str]) -> str:
    """What would be evicted next, and why."""
    idle = [adapter for adapter in resident if not adapter.pinned and not adapter.running]
    if not idle:
        return ""
    oldest = max(idle, key=lambda adapter: adapter.last_used_seconds_ago or 0.0)
    since = oldest.last_used_seconds_ago
    why = "never used" if since is None else f"idle {span_words(since)}"
    return f" {_label(oldest, names)} would be evicted next ({why})."


def _label(adapter: AdapterStatus, names: Mapping[str, str]) -> str:
    return names.get(adapter.digest, adapter.digest[:12])
