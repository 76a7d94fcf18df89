"""How full each memory is: KV cache, recurrent states, adapter memory, host cache."""

from typing import Any, Final

from loraplex.engine.protocol import EngineInfo, EngineStatus

from ...observability.kv_cache import held_states, state_words
from ...units import size_words

CACHED: Final = 1
"""Bytes of the block map above it are blocks that requests hold."""


def used_blocks(status: EngineStatus) -> int:
    """Blocks that requests hold; those that only keep a reusable prefix are free."""
    return len(status.block_map) - status.block_map.count(0) - status.block_map.count(CACHED)


def tiers(status: EngineStatus | None, info: EngineInfo | None) -> list[dict[str, Any]]:
    """Name, share from 0 to 1 and words of each; none while the engine is away."""
    if status is None or info is None:
        return []
    used, kept = used_blocks(status), status.cached_blocks
    host = info.adapter_host_memory
    return [
        *([_blocks(used, kept, info)] if info.num_blocks else []),
        *([_states(status, info)] if info.num_states else []),
        _bytes("Adapter memory", status.adapter_bytes_used, info.adapter_memory),
        *([_bytes("Host cache", status.adapter_host_bytes_used, host)] if host else []),
    ]


def _blocks(used: int, kept: int, info: EngineInfo) -> dict[str, Any]:
    words = f"{used:,} of {info.num_blocks:,} blocks, {kept:,} more reusable"
    return {"name": "KV cache", "share": used / info.num_blocks, "words": words}


def _states(status: EngineStatus, info: EngineInfo) -> dict[str, Any]:
    share = held_states(info, status) / info.num_states
    return {"name": "Recurrent states", "share": round(share, 4), "words": state_words(info, status)}


def _bytes(name: str, used: int, capacity: int) -> dict[str, Any]:
    words = f"{size_words(used)} of {size_words(capacity)}"
    return {"name": name, "share": round(used / max(1, capacity), 4), "words": words}
