"""The adapters: list with search, one adapter's page, and what can be done to it."""

import asyncio
import re
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from loraplex.registry.adapters.contents import difference, tensors_of
from loraplex.registry.adapters.views import Adapter, Version
from loraplex.registry.snapshot import Snapshots

from ...access.caller import Caller
from ...access.permissions import Permission
from ...api.adapters.certification import standings_of
from ...api.views import ON_DISK, residency
from ...endpoints.authentication import form_fields
from ...endpoints.dependencies import CallerOf, RegistryOf, StateOf
from ...http.errors import ApiError
from ...management.changes import apply_change
from ...management.undoing import undo_change
from ...observability.kv_cache import clipping_words
from ...routing.moves import LastDay
from ...state import State
from ...units import count_words, size_words
from ..aliases.actions import NOTICES, act_on, get_adapter
from ..aliases.alias_section import NOTICES as ROUTE_NOTICES
from ..aliases.alias_section import route_views
from ..aliases.rolling import refused_numbers, rolling_note
from ..forms import Form, read_form
from ..lists import AskedOf
from ..page import NOT_KEPT, PageRoute, address_of, go_to, is_fragment, page
from ..questions import delete_question, disable_question, last_day_of, version_questions
from ..snippets import snippets, use_of
from .adapter_history import MoveRow, move_rows, traffic_points
from .adapter_rows import adapter_row, adapter_rows, facts_of, shown_version, version_rows
from .adapter_search import FILTERS, ORDERS, matching
from .adapter_state import state_rows
from .certificate_view import version_certificate
from .profile import profile_view

SECTION: Final = "/adapters"
PAGE_ROWS: Final = 100
MOST_TENSORS: Final = 1000
START: Final = re.compile(r"[0-9]{1,7}", re.ASCII)

router = APIRouter(prefix=SECTION, include_in_schema=False, route_class=PageRoute)


@router.get("")
async def index(request: Request, state: StateOf, caller: CallerOf, asked: AskedOf, start: str = "") -> Response:
    found = matching(state, caller.tenant, asked.search, asked.show, asked.order)
    first = int(start) if START.fullmatch(start) else 0
    after = first + PAGE_ROWS
    return page(
        request,
        _list_template(is_fragment(request), first),
        SECTION,
        rows=adapter_rows(state, found[first:after]),
        any=bool(state.snapshots.current.of_tenant(caller.tenant)),
        address=address_of(request),
        found=count_words(len(found), "adapter"),
        after=after if len(found) > after else None,
        search=asked.search,
        show=asked.show,
        order=asked.order,
        states=FILTERS,
        orders=ORDERS,
        done=NOTICES.get(asked.done),
    )


@router.get("/{name}")
async def detail(request: Request, name: str, state: StateOf, caller: CallerOf, done: str = "") -> Response:
    return await _page(request, state, caller, name, Form(), done)


async def _page(request: Request, state: State, caller: Caller, name: str, deletion: Form, done: str = "") -> Response:
    """`deletion`: what was typed into the form that deletes the adapter."""
    adapter = await asyncio.to_thread(get_adapter, state.registry, name, caller.tenant)
    day = await asyncio.to_thread(last_day_of, state.registry, caller, adapter)
    version = shown_version(adapter)
    report = await asyncio.to_thread(state.registry.adapters.report, f"{name}@{version.number}", caller.tenant)
    standings = await standings_of(state, adapter)
    return page(
        request,
        "adapters/detail.html",
        SECTION,
        200 if deletion.is_good else deletion.status,
        adapter=adapter_row(state, adapter),
        enabled=adapter.enabled,
        facts=facts_of(version),
        findings=report.findings,
        versions=version_rows(adapter, standings, await asyncio.to_thread(refused_numbers, state.registry, adapter)),
        rolling_note=rolling_note(adapter),
        states=state_rows(state, adapter, version, caller.allows(Permission.OPERATE)),
        moves=_moves(request, state.snapshots, adapter),
        certificate=version_certificate(
            adapter, version, standings[version.number], state.settings.promotion_min_agreement
        ),
        profile=profile_view(state, adapter, version),
        snippets=snippets(address_of(request), name, use_of(state, name, caller.tenant)),
        routes=await asyncio.to_thread(route_views, state, day),
        disable=disable_question(day),
        delete=delete_question(day),
        version_questions=version_questions(day),
        form=deletion,
        clipping=clipping_words(state.engine.info, residency(state).get(version.digest, ON_DISK).clipping),
        use=_use_words(day),
        done=(NOTICES | ROUTE_NOTICES).get(done),
    )


@router.get("/{name}/traffic")
async def traffic(name: str, state: StateOf, caller: CallerOf) -> Response:
    """The points of the page's charts."""
    adapter = await asyncio.to_thread(get_adapter, state.registry, name, caller.tenant)
    return JSONResponse(traffic_points(state.metrics, caller.tenant, adapter.name), headers=NOT_KEPT)


@router.get("/{name}/states")
async def states(request: Request, name: str, state: StateOf, caller: CallerOf) -> Response:
    """The two parts of the page that change by themselves: desired beside observed, loads and evictions."""
    adapter = await asyncio.to_thread(get_adapter, state.registry, name, caller.tenant)
    rows = state_rows(state, adapter, shown_version(adapter), caller.allows(Permission.OPERATE))
    moves = _moves(request, state.snapshots, adapter)
    return page(request, "adapters/_observed.html", SECTION, name=name, states=rows, moves=moves)


@router.get("/{name}/diff")
async def diff(
    request: Request, name: str, registry: RegistryOf, caller: CallerOf, before: str = "", after: str = ""
) -> Response:
    """A fragment: what another version, by its number, has otherwise."""
    adapter = await asyncio.to_thread(get_adapter, registry, name, caller.tenant)
    old, new = _version(adapter, before), _version(adapter, after)
    found = await asyncio.to_thread(difference, registry.store, old.digest, new.digest)
    return page(request, "adapters/_diff.html", SECTION, before=old, after=new, found=found)


@router.get("/{name}/tensors")
async def tensors(request: Request, name: str, registry: RegistryOf, caller: CallerOf, version: str = "") -> Response:
    """A fragment: the tensors of one version's weights file."""
    adapter = await asyncio.to_thread(get_adapter, registry, name, caller.tenant)
    found = await asyncio.to_thread(tensors_of, registry.store, _version(adapter, version).digest)
    rows = [(one.name, one.dtype, " × ".join(map(str, one.shape)), size_words(one.end - one.start)) for one in found]
    return page(request, "adapters/_tensors.html", SECTION, rows=rows[:MOST_TENSORS], count=len(rows))


@router.post("/{name}/delete")
async def delete(request: Request, name: str, state: StateOf, caller: CallerOf) -> Response:
    form = await read_form(request)
    if form.text("confirm") != name:
        form.errors["confirm"] = f"Nothing was deleted. To confirm, type the adapter's name: {name}"
        return await _page(request, state, caller, name, form)
    await apply_change(state, state.registry.adapters.remove, name, **caller.by)
    state.metrics.forget(caller.tenant, name)
    return go_to(request, f"{SECTION}?done=delete")


@router.post("/{name}/undo")
async def undo(request: Request, name: str, state: StateOf, caller: CallerOf) -> Response:
    """The change that the bar names."""
    fields = await form_fields(request)
    await undo_change(state, caller.tenant, name, fields.get("change", ""), caller.actor)
    return go_to(request, f"{SECTION}/{name}?done=undo")


@router.post("/{reference}/{action}")
async def act(request: Request, reference: str, action: str, state: StateOf, caller: CallerOf) -> Response:
    """`reference` is a name, or name@number for one version."""
    await act_on(state, caller, reference, action)
    return go_to(request, f"{SECTION}/{reference.partition('@')[0]}?done={action}")


def _moves(request: Request, snapshots: Snapshots, adapter: Adapter) -> list[MoveRow]:
    digests = {one.digest for one in adapter.versions}
    return move_rows(snapshots, adapter, request.app.state.live.cache.moves_of(digests))


def _version(adapter: Adapter, number: str) -> Version:
    found = adapter.select(int(number)) if START.fullmatch(number) else None
    if found is None:
        raise ApiError(404, f"Adapter '{adapter.name}' has no version {number[:20]!a}.")
    return found


def _list_template(fragment: bool, first: int) -> str:
    """The page, the table alone when a search changes it, or the rows alone when more are asked for."""
    if not fragment:
        return "adapters/list.html"
    return "adapters/_rows.html" if first else "adapters/_table.html"


def _use_words(day: LastDay) -> str:
    """Who would notice if it were gone; a restart of the server forgets nobody."""
    requests, aliases = day.traffic(), ", ".join(sorted(day.adapter.aliases))
    return f"{requests[0].upper()}{requests[1:]}; {f'aliases: {aliases}' if aliases else 'no aliases'}."
