"""What is shown of a route: each version's part, and how its latest requests went in this process."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from loraplex.registry.routes import Guard, Route
from loraplex.registry.views import Adapter

from .tallies import Copies, Figures, Lane, Tallies

WINDOW_SECONDS: Final = Guard().window_seconds
"""Where no guard says another."""


@dataclass(frozen=True, slots=True)
class Part:
    """`role`: stable, candidate or shadow; `percent`: of the callers, of a shadow of the requests."""

    version: int
    role: str
    percent: int
    figures: Figures
    copies: Copies


def window_of(route: Route) -> int:
    """Seconds that its figures are of."""
    return WINDOW_SECONDS if route.guard is None else route.guard.window_seconds


def parts_of(tallies: Tallies, adapter: Adapter, route: Route) -> list[Part]:
    """The stable version first."""
    window = window_of(route)
    return [
        Part(
            lane.version,
            role,
            percent,
            tallies.figures(lane, window),
            tallies.copies_of(lane) if lane.shadow else Copies(),
        )
        for role, percent, lane in _lanes(adapter, route)
    ]


def figures_json(tallies: Tallies, adapter: Adapter, route: Route) -> dict[str, Any]:
    parts = [_part_json(part) for part in parts_of(tallies, adapter, route)]
    return {"figures": {"window_seconds": window_of(route), "versions": parts}}


def _lanes(adapter: Adapter, route: Route) -> Iterator[tuple[str, int, Lane]]:
    place = adapter.tenant, adapter.name, route.alias
    yield "stable", route.weights[route.stable], Lane(*place, route.stable)
    for candidate in route.candidates:
        if candidate.weight:
            yield "candidate", candidate.weight, Lane(*place, candidate.version, candidate.since)
        if candidate.shadow:
            yield "shadow", candidate.shadow, Lane(*place, candidate.version, candidate.since, shadow=True)


def _part_json(part: Part) -> dict[str, Any]:
    figures, copies = part.figures, part.copies
    shadow = {"dropped": copies.dropped, "compared": copies.compared, "equal": copies.equal}
    return {
        "version": part.version,
        "role": part.role,
        "percent": part.percent,
        "requests": figures.requests,
        "errors": figures.errors,
        "error_rate": round(figures.error_rate, 4),
        "completion_tokens": figures.tokens,
        "p95_first_token_ms": milliseconds(figures.first_token),
        "p95_latency_ms": milliseconds(figures.latency),
        **(shadow if part.role == "shadow" else {}),
    }


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 1)
