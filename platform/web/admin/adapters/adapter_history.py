"""One adapter over time: its traffic by hours, the latency of its last requests, its loads and evictions."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from loraplex.registry.adapters.views import Adapter
from loraplex.registry.snapshot import Snapshots

from ...observability.metrics import Metrics
from ...units import duration_words
from ..figures.cache_history import Move
from ..words import OTHER

MOST_REQUESTS: Final = 300
MOST_MOVES: Final = 20


@dataclass(frozen=True, slots=True)
class MoveRow:
    at_iso: str
    version: str
    what: str
    why: str


def traffic_points(metrics: Metrics, tenant: str, name: str) -> dict[str, Any]:
    """`hours`: what ended in each of the last 24; `requests`: the latest ones, oldest first. Times in Unix seconds."""
    hours = metrics.hours.of(tenant, name)
    ended = [one for one in reversed(list(metrics.recent)) if (one.tenant, one.model) == (tenant, name)]
    latest = sorted(ended[:MOST_REQUESTS], key=lambda one: one.at)
    return {
        "hours": {
            "at": [at for at, _ in hours],
            "requests": [hour.requests for _, hour in hours],
            "errors": [hour.errors for _, hour in hours],
            "tokens": [hour.tokens for _, hour in hours],
        },
        "requests": {
            "at": [round(one.at, 3) for one in latest],
            "first_token_ms": [None if one.first_token is None else round(1000 * one.first_token) for one in latest],
            "duration_ms": [round(1000 * one.duration) for one in latest],
        },
    }


def move_rows(snapshots: Snapshots, adapter: Adapter, moves: Sequence[Move]) -> list[MoveRow]:
    """Newest first. Of several versions with the same bytes the newest is named."""
    numbers = {version.digest: version.number for version in adapter.versions}
    adapters = snapshots.current.of_tenant(adapter.tenant) if moves else ()
    names = {version.digest: one.name for one in adapters for version in one.versions}
    return [
        MoveRow(
            at_iso=datetime.fromtimestamp(move.at, UTC).isoformat(timespec="seconds"),
            version=f"version {numbers[move.digest]}",
            what="Loaded" if move.loaded else "Evicted",
            why=_why(move, names),
        )
        for move in moves[:MOST_MOVES]
    ]


def _why(move: Move, names: dict[str, str]) -> str:
    if move.loaded:
        source = "from the host cache" if move.from_host else "from disk"
        return source if move.seconds is None else f"{source}, in {duration_words(move.seconds)}"
    if move.winner is None:
        return "manual"
    return f"to make room for {names.get(move.winner, OTHER)}"
