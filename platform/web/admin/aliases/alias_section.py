"""The part of an adapter's page that shares an alias's callers out among versions."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from loraplex.registry.adapters.alias_routes import AliasRoutes
from loraplex.registry.adapters.alias_rows import NEW
from loraplex.registry.adapters.routes import Guard, Route, ShareBy, guard_of, share_by_of

from ...endpoints.authentication import form_fields
from ...endpoints.dependencies import CallerOf, StateOf
from ...http.errors import invalid, not_found
from ...management.changes import apply_change
from ...routing.callers import few_callers_words, share_warning
from ...routing.figures import Part, actual_percents, milliseconds, parts_of
from ...routing.moves import LastDay, all_to
from ...routing.tallies import Tallies
from ...routing.traffic import callers_of_day
from ...state import State
from ...units import age_words, percent_words
from ..page import PageRoute, go_to, page
from ..questions import Question, last_day_of, model_of, promote_question, remove_question, rollback_question
from .actions import get_adapter
from .guard_fields import guard_fields, guard_words

SECTION: Final = "/adapters"
NONE: Final = "–"
COUNTS: Final = ("min_requests", "window_seconds")
"""Of a guard's fields those that are whole numbers."""
NOTICES: Final = {
    "route": "Route added.",
    "weights": "Shares saved.",
    "target": "Target version saved.",
    "promote": "Promoted. This version now serves everybody.",
    "rollback": "Rolled back. The stable version now serves everybody.",
    "guard": "Guard saved.",
    "unguard": "Guard removed.",
    "shadow": "Shadow saved. Its responses are measured, then discarded.",
    "unshadow": "Shadow stopped.",
    "unalias": "Route removed. Its versions are kept.",
}
"""What the page says after it was done."""

router = APIRouter(prefix=SECTION, include_in_schema=False, route_class=PageRoute)


@dataclass(frozen=True, slots=True)
class PartRow:
    version: int
    role: str
    percent: int
    actual: str
    requests: str
    errors: str
    first_token: str
    latency: str
    copies: str


@dataclass(frozen=True, slots=True)
class RouteView:
    """`model`: what a client asks for. `seen`: which state of the route this is.
    `candidates` and `others`: version numbers with and without a weight."""

    alias: str
    model: str
    seen: str
    stable: int
    candidates: list[tuple[int, int]]
    others: list[int]
    share_by: str
    few_callers: str
    """Why a share by caller would mean little; empty where it means something."""
    warning: str
    shadow: int | None
    shadow_percent: int
    guard: Mapping[str, Any]
    guarded: bool
    guard_words: str
    trip: str
    trip_age: str
    can_roll_back: bool
    back_to: int | None
    promote: Mapping[int, Question]
    rollback: Question | None
    remove: Question
    target: Question
    target_words: Mapping[int, str]
    """What the dialog says, by the version that all callers would get."""
    parts: list[PartRow]


def route_views(state: State, day: LastDay) -> list[RouteView]:
    """Counts and sorts what is noted of each version: call it off the event loop."""
    callers = callers_of_day(state.callers, day.adapter, day.uses)
    return [_view(state.tallies, day, route, callers) for route in day.adapter.routes.values()]


@router.get("/{name}/aliases")
async def figures(request: Request, name: str, state: StateOf, caller: CallerOf) -> Response:
    """A fragment: how the latest requests of each version went."""
    adapter = await asyncio.to_thread(get_adapter, state.registry, name, caller.tenant)
    day = await asyncio.to_thread(last_day_of, state.registry, caller, adapter)
    routes = await asyncio.to_thread(route_views, state, day)
    return page(request, "adapters/_alias_figures.html", SECTION, name=name, routes=routes)


@router.post("/{name}/aliases")
async def add(request: Request, name: str, state: StateOf, caller: CallerOf) -> Response:
    """A new route, to one version."""
    routes, fields = state.registry.adapters.routes, await form_fields(request)
    alias, version = fields.get("alias", "").strip(), _number(fields, "version")
    await apply_change(state, routes.set, name, alias, version, **caller.by, seen=NEW)
    return go_to(request, f"{SECTION}/{name}?done=route#aliases")


@router.post("/{name}/aliases/{alias}/{action}")
async def act(request: Request, name: str, alias: str, action: str, state: StateOf, caller: CallerOf) -> Response:
    routes, fields = state.registry.adapters.routes, await form_fields(request)
    make = CHANGES.get(action)
    if make is None:
        raise not_found(f"There is no action '{action}' on an alias.")
    # A form is about the route that its page showed: the guard may have acted since.
    await apply_change(state, make(routes, fields), name, alias, **caller.by, seen=fields.get("seen") or None)
    return go_to(request, f"{SECTION}/{name}?done={action}#aliases")


def _weights(routes: AliasRoutes, fields: Mapping[str, str]) -> Callable[..., object]:
    """Of the stable version, of the candidates that it has, and of one more."""
    stable = _number(fields, "stable")
    given = {name.removeprefix("weight-"): name for name in fields if name.startswith("weight-")}
    shares = {_whole(number, name): _number(fields, name) for number, name in given.items()}
    if fields.get("candidate", "").strip():
        shares[_number(fields, "candidate")] = _number(fields, "percent")
    shares.pop(stable, None)
    weights = {stable: 100 - sum(shares.values()), **shares}
    return partial(routes.set, selector=stable, weights=weights, share_by=_share_by(fields))


def _share_by(fields: Mapping[str, str]) -> ShareBy | None:
    """None: as it was."""
    try:
        return share_by_of(fields["share_by"]) if fields.get("share_by") else None
    except ValueError as error:
        raise invalid(str(error), "share_by") from None


def _promote(routes: AliasRoutes, fields: Mapping[str, str]) -> Callable[..., object]:
    return partial(routes.promote, selector=fields.get("version") or None)


def _guard(routes: AliasRoutes, fields: Mapping[str, str]) -> Callable[..., object]:
    names = (name for name in Guard.__struct_fields__ if fields.get(name, "").strip())
    given = {name: _number(fields, name) if name in COUNTS else _decimal(fields, name) for name in names}
    if "max_error_rate" in given:
        given["max_error_rate"] /= 100
    return partial(routes.set_guard, guard=_guard_of(given))


def _guard_of(given: Mapping[str, float]) -> Guard:
    try:
        return guard_of(given)
    except ValueError as error:
        raise invalid(str(error), "guard") from None


def _shadow(routes: AliasRoutes, fields: Mapping[str, str]) -> Callable[..., object]:
    return partial(routes.set_shadow, selector=_number(fields, "version"), percent=_number(fields, "percent"))


CHANGES: Final[Mapping[str, Callable[[AliasRoutes, Mapping[str, str]], Callable[..., object]]]] = {
    "weights": _weights,
    "target": lambda routes, fields: partial(routes.set, selector=_number(fields, "version")),
    "promote": _promote,
    "rollback": lambda routes, fields: partial(routes.rollback, selector=fields.get("version") or None),
    "guard": _guard,
    "unguard": lambda routes, _: partial(routes.set_guard, guard=None),
    "shadow": _shadow,
    "unshadow": lambda routes, _: partial(routes.set_shadow, selector=None, percent=0),
    "unalias": lambda routes, _: routes.remove,
}


def _number(fields: Mapping[str, str], name: str) -> int:
    return _whole(fields.get(name, ""), name)


def _whole(text: str, name: str) -> int:
    plain = text.strip()
    if not (plain.isascii() and plain.isdigit() and len(plain) <= 9):
        raise invalid(f"{name} must be a whole number; got {text[:40]!a}.", name)
    return int(plain)


def _decimal(fields: Mapping[str, str], name: str) -> float:
    try:
        return float(fields[name])
    except ValueError:
        raise invalid(f"{name} must be a number; got {fields[name][:40]!a}.", name) from None


def _view(tallies: Tallies, day: LastDay, route: Route, callers: int) -> RouteView:
    """`callers`: of the last day."""
    adapter = day.adapter
    candidates = [(one.version, one.weight) for one in route.candidates if one.weight]
    numbers, trip, parts = {number for number, _ in candidates}, route.trip, parts_of(tallies, adapter, route)
    return RouteView(
        alias=route.alias,
        model=model_of(adapter, route),
        seen=route.etag,
        stable=route.stable,
        candidates=candidates,
        others=[one.number for one in reversed(adapter.versions) if one.enabled and one.number not in numbers],
        share_by=route.share_by,
        few_callers=few_callers_words(callers),
        warning=share_warning(route, callers),
        shadow=None if route.shadow is None else route.shadow.version,
        shadow_percent=10 if route.shadow is None else route.shadow.shadow,
        guard=guard_fields(route.guard),
        guarded=route.guard is not None,
        guard_words=guard_words(route.guard),
        trip="" if trip is None else trip.reason,
        trip_age="" if trip is None else age_words(trip.at),
        can_roll_back=bool(candidates or trip or route.previous is not None),
        back_to=route.previous,
        promote={number: promote_question(day, route, number) for number, _ in candidates},
        rollback=rollback_question(day, route),
        remove=remove_question(day, route),
        target=Question(f"Change {model_of(adapter, route)} for all?", "", "Use for all"),
        target_words={one.number: day.words(all_to(adapter, route.alias, one.number)) for one in adapter.versions},
        parts=[_row(part, actual) for part, actual in zip(parts, actual_percents(parts), strict=True)],
    )


def _row(part: Part, actual: float | None) -> PartRow:
    figures, copies = part.figures, part.copies
    return PartRow(
        version=part.version,
        role=part.role,
        percent=part.percent,
        actual=NONE if actual is None else f"{actual:.0f} % ({part.answered:,})",
        requests=f"{figures.requests:,}",
        errors=f"{figures.errors:,} ({percent_words(figures.error_rate)})" if figures.requests else NONE,
        first_token=_time(figures.first_token),
        latency=_time(figures.latency),
        copies=f"{copies.equal:,} of {copies.compared:,} greedy answers identical; {copies.dropped:,} dropped"
        if part.role == "shadow"
        else "",
    )


def _time(seconds: float | None) -> str:
    return NONE if seconds is None else f"{milliseconds(seconds):,.0f} ms"
