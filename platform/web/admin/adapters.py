"""The adapters: list with search, one adapter's page, and what can be done to it."""

import asyncio
import re
import time
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from loraplex.registry.views import Adapter

from ..api.certification import standings_of
from ..api.views import ON_DISK, residency
from ..auth import form_fields
from ..dependencies import CallerOf, StateOf
from ..errors import ApiError
from ..kv_cache import clipping_words
from ..state import State
from ..units import count_words
from .actions import NOTICES, act_on, change, get_adapter
from .adapter_rows import adapter_row, adapter_rows, facts_of, matching, shown_version, version_rows
from .certificate_view import version_certificate
from .page import PageRoute, address_of, go_to, is_fragment, page
from .snippets import snippets

SECTION: Final = "/adapters"
PAGE_ROWS: Final = 100
HOUR: Final = 3600
START: Final = re.compile(r"[0-9]{1,7}", re.ASCII)

router = APIRouter(prefix=SECTION, include_in_schema=False, route_class=PageRoute)


@router.get("")
async def index(
    request: Request, state: StateOf, caller: CallerOf, search: str = "", start: str = "", done: str = ""
) -> Response:
    found = matching(state, caller.tenant, search)
    first = int(start) if START.fullmatch(start) else 0
    after = first + PAGE_ROWS
    return page(
        request,
        _list_template(is_fragment(request), first),
        SECTION,
        rows=adapter_rows(state, found[first:after]),
        any=bool(state.registry.snapshots.current.of_tenant(caller.tenant)),
        found=count_words(len(found), "adapter"),
        after=after if len(found) > after else None,
        search=search,
        done=NOTICES.get(done),
    )


@router.get("/{name}")
async def detail(request: Request, name: str, state: StateOf, caller: CallerOf, done: str = "") -> Response:
    adapter = await asyncio.to_thread(get_adapter, state, name, caller.tenant)
    version = shown_version(adapter)
    report = await asyncio.to_thread(state.registry.adapters.report, f"{name}@{version.number}", caller.tenant)
    standings = await standings_of(state, adapter)
    return page(
        request,
        "adapters/detail.html",
        SECTION,
        adapter=adapter_row(state, adapter),
        enabled=adapter.enabled,
        facts=facts_of(version),
        findings=report.findings,
        versions=version_rows(adapter, standings),
        certificate=version_certificate(
            adapter, version, standings[version.number], state.settings.promotion_min_agreement
        ),
        snippets=snippets(address_of(request), name, chat=state.template is not None),
        clipping=clipping_words(state.engine.info, residency(state).get(version.digest, ON_DISK).clipping),
        use=_use_words(state, adapter),
        done=NOTICES.get(done),
    )


@router.post("/{name}/alias")
async def point_alias(request: Request, name: str, state: StateOf, caller: CallerOf) -> Response:
    fields, adapters = await form_fields(request), state.registry.adapters
    alias, selector = fields.get("alias", "").strip(), fields.get("version", "").strip()
    await change(state, lambda: adapters.set_alias(name, alias, selector, actor=caller.actor, tenant=caller.tenant))
    return go_to(request, f"{SECTION}/{name}?done=alias")


@router.post("/{name}/delete")
async def delete(request: Request, name: str, state: StateOf, caller: CallerOf) -> Response:
    fields = await form_fields(request)
    if fields.get("confirm", "").strip() != name:
        raise ApiError(400, f"Nothing was deleted. To delete the adapter, type its name, {name}, beside the button.")
    await change(state, lambda: state.registry.adapters.remove(name, actor=caller.actor, tenant=caller.tenant))
    state.metrics.forget(caller.tenant, name)
    return go_to(request, f"{SECTION}?done=delete")


@router.post("/{reference}/{action}")
async def act(request: Request, reference: str, action: str, state: StateOf, caller: CallerOf) -> Response:
    """`reference` is a name, or name@number for one version."""
    await act_on(state, caller, reference, action)
    return go_to(request, f"{SECTION}/{reference.partition('@')[0]}?done={action}")


def _list_template(fragment: bool, first: int) -> str:
    """The page, the table alone when a search changes it, or the rows alone when more are asked for."""
    if not fragment:
        return "adapters/list.html"
    return "adapters/_rows.html" if first else "adapters/_table.html"


def _use_words(state: State, adapter: Adapter) -> str:
    """Who would notice if it were gone."""
    since = time.time() - HOUR
    ours = [request for request in list(state.metrics.recent) if request.tenant == adapter.tenant]
    count = sum(request.model == adapter.name and request.at > since for request in ours)
    requests = f"{count_words(count, 'request')} in the last hour" if count else "No requests in the last hour"
    aliases = ", ".join(sorted(adapter.aliases))
    return f"{requests}; aliases: {aliases}." if aliases else f"{requests}, no aliases."
