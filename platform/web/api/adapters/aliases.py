"""/api/v1/adapters/{name}/aliases: weighted routes over versions, their guard and their shadow."""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from loraplex.registry.adapters.alias_routes import AliasRoutes
from loraplex.registry.adapters.routes import Guard, Route, ShareBy
from loraplex.registry.adapters.views import Adapter
from loraplex.registry.errors import InvalidRoute

from ...access.caller import Caller
from ...endpoints.dependencies import CallerOf, StateOf
from ...http.errors import invalid, not_found
from ...http.json_body import convert, read_json
from ...http.refusals import as_api_error
from ...routing.answers import RouteFigures
from ...routing.figures import figures_of
from ...routing.traffic import callers_of_day
from ..answers import watched_json
from .adapters import changed

if TYPE_CHECKING:
    from ...state import State

ETAG: Final = re.compile(r'"([^"]{1,64})"', re.ASCII)
T = TypeVar("T")

router = APIRouter(tags=["Aliases"])


@dataclass(frozen=True, slots=True)
class AliasRequest:
    """One that changes an alias. `seen`: the ETag of the route that it is meant for, without its quotes; None: any."""

    name: str
    alias: str
    request: Request
    state: "State"
    caller: Caller
    seen: str | None

    async def body(self, kind: type[T]) -> T:
        return convert(await read_json(self.request, self.state.settings.body_timeout), kind)

    async def version(self) -> int | str | None:
        """Of a body that may be left out."""
        return (await self.body(Chosen)).version if await self.request.body() else None

    async def change(self, act: Callable[..., Adapter], *arguments: object, **named: object) -> dict[str, Any]:
        """`act`: of AliasRoutes."""
        routes, by = self.state.registry.adapters.routes, self.caller.by
        write = partial(act, routes, self.name, self.alias, *arguments, **named, **by, seen=self.seen)
        return await changed(self.state, self.caller, self.name, write)


async def _asked(name: str, alias: str, request: Request, state: StateOf, caller: CallerOf) -> AliasRequest:
    given = request.headers.get("if-match")
    found = None if given is None else ETAG.fullmatch(given.strip())
    if given is not None and found is None:
        raise invalid("if-match must be the route's ETag as GET returns it, including the quotes.", "if-match")
    return AliasRequest(name, alias, request, state, caller, found and found[1])


AliasOf = Annotated[AliasRequest, Depends(_asked)]


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
    return {"data": [await _watched(state, adapter, route) for route in routes]}


@router.get("/api/v1/adapters/{name}/aliases/{alias}")
async def get_alias(name: str, alias: str, response: Response, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """Its ETag is the time of the last change, and goes into `If-Match` of the next one."""
    with as_api_error():
        adapter = await asyncio.to_thread(state.registry.adapters.get, name, caller.tenant)
    route = adapter.routes.get(alias)
    if route is None:
        raise not_found(f"Adapter '{name}' has no alias {alias[:80]!a}.", "alias", "alias_not_found")
    response.headers["etag"] = f'"{route.etag}"'
    return await _watched(state, adapter, route)


@router.put("/api/v1/adapters/{name}/aliases/{alias}")
async def set_alias(asked: AliasOf) -> dict[str, Any]:
    """Let name@alias mean a version, or share its callers out among several."""
    fields = await asked.body(NewRoute)
    with as_api_error():
        weights = None if fields.weights is None else _numbered(fields.weights)
        if fields.version is None and weights is None:
            raise InvalidRoute("Give the alias's version, or weights.", "version")
    return await asked.change(AliasRoutes.set, fields.version, weights, share_by=fields.share_by)


@router.delete("/api/v1/adapters/{name}/aliases/{alias}")
async def remove_alias(asked: AliasOf) -> dict[str, Any]:
    return await asked.change(AliasRoutes.remove)


@router.post("/api/v1/adapters/{name}/aliases/{alias}/promote")
async def promote(asked: AliasOf) -> dict[str, Any]:
    """Make a candidate the stable version: the only one, or the `version` of the body."""
    return await asked.change(AliasRoutes.promote, await asked.version())


@router.post("/api/v1/adapters/{name}/aliases/{alias}/rollback")
async def roll_back(asked: AliasOf) -> dict[str, Any]:
    """All callers back to the stable version; without candidates, back to the stable version before. The `version` of
    the body says to which of the two. Who asks twice goes back once."""
    return await asked.change(AliasRoutes.rollback, await asked.version())


@router.put("/api/v1/adapters/{name}/aliases/{alias}/guard")
async def set_guard(asked: AliasOf) -> dict[str, Any]:
    """Roll back a candidate automatically when it breaks a limit."""
    return await asked.change(AliasRoutes.set_guard, await asked.body(Guard))


@router.delete("/api/v1/adapters/{name}/aliases/{alias}/guard")
async def remove_guard(asked: AliasOf) -> dict[str, Any]:
    return await asked.change(AliasRoutes.set_guard, None)


@router.put("/api/v1/adapters/{name}/aliases/{alias}/shadow")
async def set_shadow(asked: AliasOf) -> dict[str, Any]:
    """Copy a percentage of the alias's requests to a version. Its responses are measured, then discarded."""
    shadow = await asked.body(NewShadow)
    return await asked.change(AliasRoutes.set_shadow, shadow.version, shadow.percent)


@router.delete("/api/v1/adapters/{name}/aliases/{alias}/shadow")
async def remove_shadow(asked: AliasOf) -> dict[str, Any]:
    return await asked.change(AliasRoutes.set_shadow, None, 0)


async def _watched(state: "State", adapter: Adapter, route: Route) -> dict[str, Any]:
    def read() -> RouteFigures:
        uses = state.registry.usage.last_day(adapter.tenant, adapter.name)
        return figures_of(state.tallies, adapter, route, callers_of_day(state.callers, adapter, uses))

    return watched_json(route, await asyncio.to_thread(read))


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
