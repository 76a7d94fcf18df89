"""What would have happened with another adapter memory: the latest requests replayed against a plain LRU."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...adapters.engine_door import EngineDoor
from ...observability.request_log import FinishedRequest
from ...units import count_words, percent_words, size_words

FACTORS: Final = (0.5, 1.0, 2.0, 4.0)
NOW: Final = 1.0
MOST_USES: Final = 3000
"""That are replayed; more would take longer than a page may."""


@dataclass(frozen=True, slots=True)
class Replay:
    """`uses`: adapters that requests asked for; `loads`: how many of them were not in memory then."""

    uses: int
    loads: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """One size of the adapter memory, in words."""

    label: str
    memory: str
    hit_rate: str
    share: float
    """Of 100, for the bar."""
    loads: str
    is_now: bool


def scenarios(engine: EngineDoor, uses: Sequence[str]) -> list[Scenario]:
    """None without an engine, or without a request that ran with an adapter. Takes some milliseconds for each."""
    status, info = engine.status, engine.info
    if status is None or info is None or not uses:
        return []
    sizes = {adapter.digest: adapter.bytes for adapter in status.adapters}
    pinned = {adapter.digest for adapter in status.adapters if adapter.pinned}
    found = []
    for factor in FACTORS:
        memory = int(factor * info.adapter_memory)
        result = replay(uses, sizes, pinned, memory, info.max_loaded_adapters)
        found.append(_scenario(factor, memory, result))
    return found


def used_digests(requests: Iterable[FinishedRequest]) -> list[str]:
    """What was asked for last, in the order in which the requests began."""
    began = sorted(requests, key=lambda request: request.at - request.duration)
    return [digest for request in began for digest in request.digests][-MOST_USES:]


def replay(uses: Sequence[str], sizes: Mapping[str, int], pinned: Collection[str], memory: int, slots: int) -> Replay:
    """Least recently used leaves first, pinned ones never. `sizes` in bytes; an adapter without one takes no room."""
    loaded: OrderedDict[str, int] = OrderedDict((digest, sizes.get(digest, 0)) for digest in pinned)
    taken, loads = sum(loaded.values()), 0
    for digest in uses:
        if digest in loaded:
            loaded.move_to_end(digest)
            continue
        loads += 1
        loaded[digest] = sizes.get(digest, 0)
        taken += loaded[digest]
        while taken > memory or len(loaded) > slots:
            oldest = next((one for one in loaded if one not in pinned and one != digest), None)
            if oldest is None:
                break
            taken -= loaded.pop(oldest)
    return Replay(len(uses), loads)


def _scenario(factor: float, memory: int, result: Replay) -> Scenario:
    hits = (result.uses - result.loads) / result.uses
    return Scenario(
        label="current" if factor == NOW else f"{factor:g}×",
        memory=size_words(memory),
        hit_rate=percent_words(hits),
        share=round(100 * hits, 1),
        loads=count_words(result.loads, "load"),
        is_now=factor == NOW,
    )
