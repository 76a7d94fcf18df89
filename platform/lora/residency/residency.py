"""AdapterEntry: what the pool knows of one adapter. Residency: the part of it that others may see."""

import math
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .pages import PageAllocation
from .weights import Contents


class Tier(StrEnum):
    """Where the nearest copy of an adapter's weights is."""

    DISK = "disk"
    HOST = "host"
    """Filled pages in the host cache."""
    DEVICE = "device"


class State(StrEnum):
    REGISTERED = "registered"
    LOADING = "loading"
    RESIDENT = "resident"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """Status of one registered adapter. Times are in seconds."""

    digest: str
    state: State
    tier: Tier
    rank: int
    """The largest rank of its modules; 0 until it was first read."""
    pages: int
    bytes: int
    """Memory its pages take, or would take, in the arena; 0 until it was first read."""
    host_bytes: int
    """Of its copy in the host cache, which a resident may have as well; 0: none."""
    pinned: bool
    running: int
    loads: int
    host_loads: int
    """Loads out of the host cache, a part of `loads`."""
    evictions: int
    evicted_for: str | None
    load_seconds: float | None
    last_used_seconds_ago: float | None
    error: str | None


@dataclass(slots=True)
class AdapterEntry:
    """Changed by the engine thread only; a job gets what it needs as arguments."""

    digest: str
    folder: str
    folder_read: str | None = None
    """The folder that `contents` describe."""
    pinned: bool = False
    state: State = State.REGISTERED
    contents: Contents | None = None
    """None unless it is being loaded or resident."""
    rank: int = 0
    pages: int = 0
    bytes: int = 0
    room: PageAllocation | None = None
    """Set while its pages are being filled and while it is resident."""
    job: Future[Any] | None = None
    """What a loader thread is doing for it."""
    from_host: bool = False
    """Its pages are filled, or were filled, from the host cache, and so finished."""
    finishing: Iterator[None] | None = None
    """What the engine thread still has to do for its filled pages."""
    users: int = 0
    asked: float = -math.inf
    """When a request last asked for it."""
    company: tuple[str, ...] = ()
    """Digests, its own among them, that were last asked for together."""
    ordered: bool = False
    """An operator asked for the load that runs."""
    fresh: bool = False
    """Loaded for a request that has not taken it yet."""
    leaving: bool = False
    """To be evicted after its last user; nobody new may take it."""
    leaving_for: str | None = None
    """Digest of the adapter that needs its room; None where an operator wanted it."""
    removed: bool = False
    """Unregistered, and forgotten after its last user."""
    error: str | None = None
    unfit: bool = False
    """The error is about the adapter itself: it will never be loaded here."""
    failures: int = 0
    retry_at: float = -math.inf
    loads: int = 0
    host_loads: int = 0
    evictions: int = 0
    evicted_for: str | None = None
    started: float = 0.0
    load_seconds: float | None = None
    last_used: float = -math.inf
    """When it was last taken, given back or loaded."""

    @property
    def busy(self) -> bool:
        """Whether its pages are somebody's; an entry that waits for room is not busy."""
        return self.job is not None or self.finishing is not None

    def status(self, now: float, host_bytes: int) -> Residency:
        below = Tier.HOST if host_bytes else Tier.DISK
        return Residency(
            digest=self.digest,
            state=self.state,
            tier=Tier.DEVICE if self.state is State.RESIDENT else below,
            rank=self.rank,
            pages=self.pages,
            bytes=self.bytes,
            host_bytes=host_bytes,
            pinned=self.pinned,
            running=self.users,
            loads=self.loads,
            host_loads=self.host_loads,
            evictions=self.evictions,
            evicted_for=self.evicted_for,
            load_seconds=self.load_seconds,
            last_used_seconds_ago=now - self.last_used if math.isfinite(self.last_used) else None,
            error=self.error,
        )
