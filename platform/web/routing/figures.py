"""What is shown of a route: each version's part, and how its latest requests went in this process."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from loraplex.registry.adapters.routes import Guard, Route
from loraplex.registry.adapters.views import Adapter

from .answers import Role, RouteFigures, VersionFigures
from .callers import share_warning
from .tallies import Copies, Figures, Lane, Tallies

SHADOW: Final = "shadow"
WINDOW_SECONDS: Final = Guard().window_seconds
"""Where no guard says another."""


@dataclass(frozen=True, slots=True)
class Part:
    """`percent`: of the route's callers or requests, of a shadow of the requests.
    `answered`: requests since the shares were set, of a shadow none."""

    version: int
    role: Role
    percent: int
    answered: int
    figures: Figures
    copies: Copies


def window_of(route: Route) -> int:
    """Seconds that its figures are of."""
    return WINDOW_SECONDS if route.guard is None else route.guard.window_seconds


def parts_of(tallies: Tallies, adapter: Adapter, route: Route) -> list[Part]:
    """The stable version first."""
    window, lanes = window_of(route), list(_lanes(adapter, route))
    set_for = (datetime.now(UTC) - route.updated_at).total_seconds()
    answering = [lane for _, _, lane in lanes if not lane.shadow]
    answered = dict(zip(answering, tallies.counts(answering, min(window, set_for)), strict=True))
    return [
        Part(
            lane.version,
            role,
            percent,
            answered.get(lane, 0),
            tallies.figures(lane, window),
            tallies.copies_of(lane) if lane.shadow else Copies(),
        )
        for role, percent, lane in lanes
    ]


def actual_percents(parts: Sequence[Part]) -> Sequence[float | None]:
    """Of the requests that all of them answered; None: there were none, or it is a shadow."""
    total = sum(part.answered for part in parts)
    return [None if part.role == SHADOW or not total else 100 * part.answered / total for part in parts]


def figures_of(tallies: Tallies, adapter: Adapter, route: Route, callers: int) -> RouteFigures:
    """`callers`: of the last day."""
    parts = parts_of(tallies, adapter, route)
    return RouteFigures(
        window_seconds=window_of(route),
        callers_last_day=callers,
        warning=share_warning(route, callers) or None,
        versions=[_figures(part, actual) for part, actual in zip(parts, actual_percents(parts), strict=True)],
    )


def _lanes(adapter: Adapter, route: Route) -> Iterator[tuple[Role, int, Lane]]:
    place = adapter.tenant, adapter.name, route.alias
    yield "stable", route.weights[route.stable], Lane(*place, route.stable)
    for candidate in route.candidates:
        if candidate.weight:
            yield "candidate", candidate.weight, Lane(*place, candidate.version, candidate.since)
        if candidate.shadow:
            yield SHADOW, candidate.shadow, Lane(*place, candidate.version, candidate.since, shadow=True)


def _figures(part: Part, actual: float | None) -> VersionFigures:
    figures, copies = part.figures, part.copies
    shadow = {"dropped": copies.dropped, "compared": copies.compared, "equal": copies.equal}
    return VersionFigures(
        version=part.version,
        role=part.role,
        percent=part.percent,
        actual_percent=None if actual is None else round(actual, 1),
        requests=figures.requests,
        errors=figures.errors,
        error_rate=round(figures.error_rate, 4),
        completion_tokens=figures.tokens,
        p95_first_token_ms=milliseconds(figures.first_token),
        p95_latency_ms=milliseconds(figures.latency),
        **(shadow if part.role == SHADOW else {}),
    )


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 1)
