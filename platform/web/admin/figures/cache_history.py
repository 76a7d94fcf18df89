"""CacheHistory: how the caches fared in the last five minutes, and the latest loads and evictions of adapters."""

import time
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from loraplex.engine.protocol import EngineStatus
from loraplex.engine.status import AdapterStatus, TenantStatus

from .tiers import used_blocks
from .traffic import POINT_SECONDS, SECONDS

MOVES: Final = 2000
"""Loads and evictions that are kept."""


@dataclass(frozen=True, slots=True)
class Move:
    """An adapter came or went. `seconds`: what the load took; `winner`: digest whose load pushed it out."""

    at: float
    digest: str
    loaded: bool
    seconds: float | None = None
    from_host: bool = False
    winner: str | None = None


@dataclass(frozen=True, slots=True)
class Second:
    queries: int = 0
    hits: int = 0
    loads: int = 0
    evictions: int = 0
    used: float | None = None
    """Share of the KV blocks that requests held; None while the engine was away."""
    of_tenants: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Queries and hits of each that had any."""


class CacheHistory:
    """`tick` once a second with what the engine says. Counters that fall (it restarted) count as standing still."""

    def __init__(self) -> None:
        self._seconds: deque[Second] = deque([Second()] * SECONDS, maxlen=SECONDS)
        self._before: EngineStatus | None = None
        self.moves: deque[Move] = deque(maxlen=MOVES)

    def tick(self, status: EngineStatus | None) -> None:
        if status is None or status is self._before:
            self._seconds.append(Second(used=self._seconds[-1].used if status is not None else None))
            return
        before, self._before = self._before, status
        moves = [] if before is None else _moves(before, status)
        self.moves.extend(moves)
        self._seconds.append(
            Second(
                queries=0 if before is None else max(0, status.prefix_queries - before.prefix_queries),
                hits=0 if before is None else max(0, status.prefix_hits - before.prefix_hits),
                loads=sum(move.loaded for move in moves),
                evictions=sum(not move.loaded for move in moves),
                used=used_blocks(status) / max(1, len(status.block_map)),
                of_tenants={} if before is None else _lookups(before, status),
            )
        )

    def points(self) -> dict[str, list[float | None]]:
        """One point for each five seconds, oldest first. Shares in percent; the hit rate is None without a lookup."""
        seconds = list(self._seconds)
        points = [seconds[at : at + POINT_SECONDS] for at in range(0, SECONDS, POINT_SECONDS)]
        return {
            "hit_rate": [_hit_rate(point) for point in points],
            "blocks_used": [_percent(point[-1].used) for point in points],
            "loads": [sum(second.loads for second in point) for point in points],
            "evictions": [sum(second.evictions for second in point) for point in points],
        }

    def points_of(self, tenant: str, digests: Collection[str]) -> dict[str, list[float | None]]:
        """As `points`, of one tenant's requests and adapters; the blocks in use are those of all."""
        seconds, first = list(self._seconds), time.time() - SECONDS
        points = [seconds[at : at + POINT_SECONDS] for at in range(0, SECONDS, POINT_SECONDS)]
        moves: dict[bool, list[float | None]] = {loaded: [0] * len(points) for loaded in (True, False)}
        counts = Counter(
            (move.loaded, min(len(points) - 1, int((move.at - first) / POINT_SECONDS)))
            for move in self.moves
            if move.digest in digests and move.at > first
        )
        for (loaded, place), count in counts.items():
            moves[loaded][place] = count
        own = [[Second(*second.of_tenants.get(tenant, (0, 0))) for second in point] for point in points]
        return {
            "hit_rate": [_hit_rate(point) for point in own],
            "blocks_used": [_percent(point[-1].used) for point in points],
            "loads": moves[True],
            "evictions": moves[False],
        }

    def evictions(self, seconds: int, digests: Collection[str] | None = None) -> int:
        """In the last so many seconds; of some adapters, or of all."""
        if digests is None:
            return sum(second.evictions for second in list(self._seconds)[-seconds:])
        first = time.time() - seconds
        return sum(not move.loaded and move.at > first and move.digest in digests for move in self.moves)

    def moves_of(self, digests: Collection[str]) -> list[Move]:
        """Newest first."""
        return [move for move in reversed(self.moves) if move.digest in digests]


def _moves(before: EngineStatus, status: EngineStatus) -> list[Move]:
    """Of an adapter that is new all: it may have come within the second in which it was registered."""
    known = {adapter.digest: adapter for adapter in before.adapters}
    new = AdapterStatus(digest="", state="registered")
    return [move for adapter in status.adapters for move in _moves_of(known.get(adapter.digest, new), adapter)]


def _moves_of(old: AdapterStatus, new: AdapterStatus) -> list[Move]:
    """In the order in which they must have happened: what is not there now left last."""
    now, found = time.time(), []
    if new.loads > old.loads:
        from_host = new.host_loads > old.host_loads
        found.append(Move(now, new.digest, loaded=True, seconds=new.load_seconds, from_host=from_host))
    if new.evictions > old.evictions:
        found.append(Move(now, new.digest, loaded=False, winner=new.evicted_for))
    return found if new.state != "resident" else found[::-1]


def _lookups(before: EngineStatus, status: EngineStatus) -> dict[str, tuple[int, int]]:
    none, found = TenantStatus(), {}
    for tenant, now in status.tenants.items():
        old = before.tenants.get(tenant, none)
        queries = now.prefix_queries - old.prefix_queries
        if queries > 0:
            found[tenant] = queries, max(0, now.prefix_hits - old.prefix_hits)
    return found


def _hit_rate(point: Sequence[Second]) -> float | None:
    queries = sum(second.queries for second in point)
    return _percent(sum(second.hits for second in point) / queries) if queries else None


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)
