"""Which residents may leave for an adapter that needs room, and whether it can ever have any."""

from collections.abc import Collection
from typing import Final

from .pages import PageStore
from .residency import AdapterEntry

FORGOTTEN: Final = 5.0
"""Seconds after which a load, or a loaded adapter, that no request has asked for again loses its claim."""


def evictable(
    entry: AdapterEntry, residents: Collection[AdapterEntry], store: PageStore, now: float
) -> list[AdapterEntry]:
    """Residents that may go at once, least recently used first; none when even all of them would not do."""
    idle = [other for other in residents if is_idle(other, now)]
    enough = store.bytes_free + sum(other.bytes for other in idle) >= entry.bytes
    return sorted(idle, key=lambda other: other.last_used) if enough else []


def is_idle(entry: AdapterEntry, now: float) -> bool:
    """May go at once: nobody uses it, and no request it was loaded for is about to."""
    return not entry.pinned and entry.users == 0 and not (entry.fresh and now - entry.asked < FORGOTTEN)


def must_stay(other: AdapterEntry, entry: AdapterEntry) -> bool:
    """Pinned, or of no use without it: they are asked for together."""
    return other.pinned or other.digest in entry.company


def fits_beside(entry: AdapterEntry, residents: Collection[AdapterEntry], store: PageStore) -> bool:
    """Whether there is room for it beside those that must stay."""
    staying = [other.bytes for other in residents if must_stay(other, entry)]
    return entry.bytes <= store.capacity - sum(staying) and len(staying) < store.slots


def refusal(entry: AdapterEntry, residents: Collection[AdapterEntry], store: PageStore) -> str:
    """For an adapter that will never fit."""
    staying = [other.bytes for other in residents if must_stay(other, entry)]
    return (
        f"adapter {entry.digest[:12]} does not fit: it needs {_megabytes(entry.bytes)} and a slot; of "
        f"{_megabytes(store.capacity)} adapter memory and {store.slots} slots, "
        f"adapters that are pinned, or asked for with it, hold {_megabytes(sum(staying))} and {len(staying)}. "
        "It needs more adapter_memory or max_loaded_adapters, or fewer pins"
    )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
