"""/api/v1/adapters/{name}/aliases: weighted routes over versions, their guard and their shadow."""

import asyncio
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from loraplex.registry.adapters.routes import Guard, Route, ShareBy
from loraplex.registry.adapters.views import Adapter
from loraplex.registry.errors import InvalidRoute

from ...access.caller import Caller
from ...endpoints.dependencies import CallerOf, StateOf
from ...http.errors import invalid, not_found
from ...http.json_body import convert, read_json
from ...http.refusals import as_api_error
from ...routing.figures import figures_of
from ...routing.traffic import callers_of_day
from ...state import State
from ..answers import route_json
from .adapters import changed

ETAG: Final = re.compile(r'"([^"]{1,64})"', re.ASCII)

router = APIRouter(tags=["Aliases"])


async def _seen(request: Request) -> str | None:
    """The ETag of the route that a change is meant for, from `If-Match`, without its quotes; None: any."""
    given = request.headers.get("if-match")
    if given is None:
        return None
    found = ETAG.fullmatch(given.strip())
    if found is None:
        raise invalid("if-match must be the route's ETag as GET returns it, including the quotes.", "if-match")
    return found[1]


SeenOf = Annotated[str | None, Depends(_seen)]


class NewRoute(msgspec.Struct, forbid_unknown_fields=True):
    """`version`: the stable one; absent: it stays. `weights`: per cent by number; absent: all to the stable one.
    `share_by`: of what the weights are per cent; absent: it stays, and is `caller` for a new route."""

    version: int | str | None = None
    weights: dict[str, int] | None = None
    share_by: ShareBy | None = None


class Chosen(msgspec.Struct, forbid_unknown_fields=True):
    version: int | str | None = None


class NewShadow(msgspec.Struct, forbid_unknown_fields=True):
    version: int | str
    percent: int


@router.get("/api/v1/adapters/{name}/aliases")
async def list_aliases(name: str, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """All aliases of an adapter, with how the latest requests of each version went in the process that answers."""
    with as_api_error():
        adapter = await asyncio.to_thread(state.registry.adapters.get, name, caller.tenant)
    routes = adapter.routes.values()
    return {"data": [route_json(route) | await _figures(state, adapter, route) for route in routes]}


@router.get("/api/v1/adapters/{name}/aliases/{alias}")
async def get_alias(name: str, alias: str, response: Response, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """Its ETag is the time of the last change, and goes into `If-Match` of the next one."""
    with as_api_error():
        adapter = await asyncio.to_thread(state.registry.adapters.get, name, caller.tenant)
    route = adapter.routes.get(alias)
    if route is None:
        raise not_found(f"Adapter '{name}' has no alias {alias[:80]!a}.", "alias", "alias_not_found")
    response.headers["etag"] = f'"{route.etag}"'
    return route_json(route) | await _figures(state, adapter, route)


@router.put("/api/v1/adapters/{name}/aliases/{alias}")
async def set_alias(
    name: str, alias: str, request: Request, state: StateOf, caller: CallerOf, seen: SeenOf
) -> dict[str, Any]:
    """Let name@alias mean a version, or share its callers out among several."""
    fields = convert(await read_json(request, state.settings.body_timeout), NewRoute)
    routes, by = state.registry.adapters.routes, _by(caller, seen)

    def change() -> Adapter:
        weights = None if fields.weights is None else _numbered(fields.weights)
        if fields.version is None and weights is None:
            raise InvalidRoute("Give the alias's version, or weights.", "version")
        return routes.set(name, alias, fields.version, weights, share_by=fields.share_by, **by)

    return await changed(state, caller, name, change)


@router.delete("/api/v1/adapters/{name}/aliases/{alias}")
async def remove_alias(name: str, alias: str, state: StateOf, caller: CallerOf, seen: SeenOf) -> dict[str, Any]:
    routes, by = state.registry.adapters.routes, _by(caller, seen)
    return await changed(state, caller, name, lambda: routes.remove(name, alias, **by))


@router.post("/api/v1/adapters/{name}/aliases/{alias}/promote")
async def promote(
    name: str, alias: str, request: Request, state: StateOf, caller: CallerOf, seen: SeenOf
) -> dict[str, Any]:
    """Make a candidate the stable version: the only one, or the `version` of the body."""
    body = await read_json(request, state.settings.body_timeout) if await request.body() else {}
    chosen = convert(body, Chosen).version
    routes, by = state.registry.adapters.routes, _by(caller, seen)
    return await changed(state, caller, name, lambda: routes.promote(name, alias, chosen, **by))


@router.post("/api/v1/adapters/{name}/aliases/{alias}/rollback")
async def roll_back(
    name: str, alias: str, request: Request, state: StateOf, caller: CallerOf, seen: SeenOf
) -> dict[str, Any]:
    """All callers back to the stable version; without candidates, back to the stable version before. The `version` of
    the body says to which of the two. Who asks twice goes back once."""
    body = await read_json(request, state.settings.body_timeout) if await request.body() else {}
    chosen = convert(body, Chosen).version
    routes, by = state.registry.adapters.routes, _by(caller, seen)
    return await changed(state, caller, name, lambda: routes.rollback(name, alias, chosen, **by))


@router.put("/api/v1/adapters/{name}/aliases/{alias}/guard")
async def set_guard(
    name: str, alias: str, request: Request, state: StateOf, caller: CallerOf, seen: SeenOf
) -> dict[str, Any]:
    """Roll back a candidate automatically when it breaks a limit."""
    guard = convert(await read_json(request, state.settings.body_timeout), Guard)
    routes, by = state.registry.adapters.routes, _by(caller, seen)
    return await changed(state, caller, name, lambda: routes.set_guard(name, alias, guard, **by))


@router.delete("/api/v1/adapters/{name}/aliases/{alias}/guard")
async def remove_guard(name: str, alias: str, state: StateOf, caller: CallerOf, seen: SeenOf) -> dict[str, Any]:
    routes, by = state.registry.adapters.routes, _by(caller, seen)
    return await changed(state, caller, name, lambda: routes.set_guard(name, alias, None, **by))


@router.put("/api/v1/adapters/{name}/aliases/{alias}/shadow")
async def set_shadow(
    name: str, alias: str, request: Request, state: StateOf, caller: CallerOf, seen: SeenOf
) -> dict[str, Any]:
    """Copy a percentage of the alias's requests to a version. Its responses are measured, then discarded."""
    shadow = convert(await read_json(request, state.settings.body_timeout), NewShadow)
    routes, by = state.registry.adapters.routes, _by(caller, seen)
    return await changed(
        state, caller, name, lambda: routes.set_shadow(name, alias, shadow.version, shadow.percent, **by)
    )


@router.delete("/api/v1/adapters/{name}/aliases/{alias}/shadow")
async def remove_shadow(name: str, alias: str, state: StateOf, caller: CallerOf, seen: SeenOf) -> dict[str, Any]:
    routes, by = state.registry.adapters.routes, _by(caller, seen)
    return await changed(state, caller, name, lambda: routes.set_shadow(name, alias, None, 0, **by))


async def _figures(state: State, adapter: Adapter, route: Route) -> dict[str, Any]:
    def read() -> dict[str, Any]:
        uses = state.registry.usage.last_day(adapter.tenant, adapter.name)
        figures = figures_of(state.tallies, adapter, route, callers_of_day(state.callers, adapter, uses))
        return {"figures": msgspec.to_builtins(figures)}

    return await asyncio.to_thread(read)


def _by(caller: Caller, seen: str | None) -> dict[str, Any]:
    return {"actor": caller.actor, "tenant": caller.tenant, "seen": seen}


def _numbered(weights: Mapping[str, int]) -> dict[int, int]:
    """Raises InvalidRoute."""
    for version in weights:
        if not (version.isascii() and version.isdigit() and len(version) <= 9):
            raise InvalidRoute(
                f'weights must be keyed by version number, such as {{"2": 90, "3": 10}}; got {version[:40]!a}.'
            )
    numbered = {int(version): weight for version, weight in weights.items()}
    if len(numbered) < len(weights):
        raise InvalidRoute("weights name a version twice, such as 2 and 02.")
    return numbered
