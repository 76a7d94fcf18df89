"""Usage as the page shows it: sums with names for people, and the points of its charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from loraplex.registry.snapshot import Snapshots
from loraplex.registry.usage.ledger import COUNTS
from loraplex.registry.usage.sums import UsageCounts, UsageSum
from loraplex.registry.usage.usage import SHADOW, UsageQuery, columns_of

from ...units import count_words

GROUPINGS: Final = {
    "adapter": "By adapter",
    "key": "By key or user",
    "day": "By day",
    "hour": "By hour",
    "day,key,adapter": "By day, key and adapter",
}
HEADS: Final = {"day": "Day", "hour": "Hour, UTC", "actor": "Key or user", "adapter_name": "Adapter"}
HOURLY_DAYS: Final = 2
VersionWords = Mapping[tuple[str, str], str]
"""By name and digest."""
"""Longest range that is drawn by the hour."""


@dataclass(frozen=True, slots=True)
class Cell:
    """`query`: what the page is narrowed to by a click; empty: it is no link."""

    words: str
    note: str = ""
    query: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class UsageLine:
    cells: tuple[Cell, ...]
    requests: str
    errors: str
    prompt_tokens: str
    cached: str
    completion_tokens: str
    unknown: str
    share: float
    """Of all tokens of the page, in percent."""


def heads(by: Sequence[str]) -> list[str]:
    return [HEADS[column] for column in columns_of(by) if column in HEADS]


def usage_lines(
    snapshots: Snapshots,
    query: UsageQuery,
    rows: Sequence[UsageSum],
    total: UsageCounts,
    names: Mapping[str, str],
) -> list[UsageLine]:
    """`names`: prefix -> label, of the keys whose labels may be seen."""
    versions, all_tokens = version_words(snapshots, query.tenant), total.tokens or 1
    return [
        UsageLine(
            cells=tuple(_narrowed(cell, query) for cell in _cells(row, query.by, versions, names)),
            requests=f"{row.requests:,}",
            errors=count_words(row.errors, "error") if row.errors else "",
            prompt_tokens=f"{row.prompt_tokens:,}",
            cached=f"{row.cached_tokens:,} from cache" if row.cached_tokens else "",
            completion_tokens=f"{row.completion_tokens:,}",
            unknown=f"{row.unknown_tokens:,} unknown" if row.unknown else "",
            share=round(100 * row.tokens / all_tokens, 1),
        )
        for row in rows
    ]


def version_words(snapshots: Snapshots, tenant: str) -> VersionWords:
    """Which version it is, of the tenant's adapters that are there: two may have the same bytes."""
    adapters = snapshots.current.of_tenant(tenant)
    return {(adapter.name, one.digest): f"version {one.number}" for adapter in adapters for one in adapter.versions}


def unknown_words(total: UsageCounts) -> str:
    """What a crash left behind; empty where nothing was."""
    if not total.unknown:
        return ""
    requests = count_words(total.unknown, "request")
    return (
        f"{requests} lost when a server process was killed. Usage is unknown, so the "
        f"{total.unknown_tokens:,} tokens reserved are counted instead."
    )


def is_hourly(query: UsageQuery) -> bool:
    return (date.fromisoformat(query.last) - date.fromisoformat(query.first)).days < HOURLY_DAYS


def chart_points(query: UsageQuery, rows: Sequence[UsageSum]) -> dict[str, list[int]]:
    """Counts by day, or by hour: from the first to the last, zeros where nothing was used. `at` in Unix seconds."""
    hourly = is_hourly(query)
    start, days = _moment(query.first), (date.fromisoformat(query.last) - date.fromisoformat(query.first)).days + 1
    found = {_moment(str(row.day)) + timedelta(hours=row.hour or 0): row for row in rows}
    hours = range(0, 24 * days, 1 if hourly else 24)
    moments = [start + timedelta(hours=number) for number in hours]
    points = {name: [getattr(found[moment], name) if moment in found else 0 for moment in moments] for name in COUNTS}
    return {"at": [int(moment.timestamp()) for moment in moments], **points}


def _moment(day: str) -> datetime:
    return datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC)


def asked_words(query: UsageQuery) -> dict[str, str]:
    """The filters as the page's address has them."""
    return {"from": query.first, "to": query.last, "adapter": query.adapter, "actor": query.actor}


def _narrowed(cell: Cell, query: UsageQuery) -> Cell:
    """A click shows the same days of this one alone, told apart by something else."""
    if not cell.query:
        return cell
    by = "adapter" if query.by == ("day",) else "day"
    return Cell(cell.words, cell.note, {**asked_words(query), **cell.query, "by": by})


def _cells(row: UsageSum, by: Sequence[str], versions: VersionWords, names: Mapping[str, str]) -> list[Cell]:
    cells = []
    for column in columns_of(by):
        match column:
            case "day":
                cells.append(Cell(str(row.day), query={"from": str(row.day), "to": str(row.day)}))
            case "hour":
                cells.append(Cell(f"{row.hour:02}:00"))
            case "actor":
                cells.append(_actor(str(row.actor), names))
            case "adapter_name":
                cells.append(_adapter(str(row.adapter_name), str(row.adapter_digest), versions))
    return cells


def _actor(actor: str, names: Mapping[str, str]) -> Cell:
    kind, _, name = actor.partition(":")
    query = {"actor": actor}
    if actor == SHADOW:
        return Cell(actor, "shadow requests", query)
    if kind == "key":
        return Cell(names.get(name, f"lp-{name}…"), f"lp-{name}…" if name in names else "key", query)
    return Cell(name or actor, kind if name else "", query)


def _adapter(name: str, digest: str, versions: VersionWords) -> Cell:
    gone = "a sum" if "+" in name else f"{digest[:12]}, removed"
    note = "base model" if not digest else versions.get((name, digest), gone)
    return Cell(name, note, {"adapter": name})
