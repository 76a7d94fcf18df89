"""The adapters: list with search, one adapter's page, and what can be done to it."""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from loraplex.registry.views import Adapter

from ..api.refusals import in_words
from ..auth import form_fields
from ..dependencies import CallerOf, StateOf
from ..errors import ApiError
from ..state import State
from ..units import count_words
from .adapter_rows import adapter_row, adapter_rows, facts_of, matching, shown_version, version_rows
from .page import PageRoute, address_of, go_to, is_fragment, page
from .snippets import snippets

SECTION: Final = "/adapters"
PAGE_ROWS: Final = 100
HOUR: Final = 3600
START: Final = re.compile(r"[0-9]{1,7}", re.ASCII)
NOTICES: Final = {
    "enable": "Enabled: requests are served.",
    "disable": "Disabled: new requests for it are refused, running ones finish.",
    "pin": "Pinned: it stays in memory.",
    "unpin": "No longer pinned: it may leave memory when others need the room.",
    "load": "Loaded into memory.",
    "evict": "Evicted from memory. The next request loads it again.",
    "delete": "Deleted. Running requests finish.",
}

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
        done=_notice(done),
    )


@router.get("/{name}")
async def detail(request: Request, name: str, state: StateOf, caller: CallerOf, done: str = "") -> Response:
    adapter = await asyncio.to_thread(_get, state, name, caller.tenant)
    version = shown_version(adapter)
    report = await asyncio.to_thread(state.registry.adapters.report, f"{name}@{version.number}", caller.tenant)
    return page(
        request,
        "adapters/detail.html",
        SECTION,
        adapter=adapter_row(state, adapter),
        enabled=adapter.enabled,
        facts=facts_of(version),
        findings=report.findings,
        versions=version_rows(adapter),
        snippets=snippets(address_of(request), name, chat=state.template is not None),
        use=_use_words(state, adapter),
        done=_notice(done),
    )


@router.post("/{name}/delete")
async def delete(request: Request, name: str, state: StateOf, caller: CallerOf) -> Response:
    fields = await form_fields(request)
    if fields.get("confirm", "").strip() != name:
        raise ApiError(400, f"Nothing was deleted. To delete the adapter, type its name, {name}, beside the button.")
    await _change(state, lambda: state.registry.adapters.remove(name, actor=caller.actor, tenant=caller.tenant))
    state.metrics.forget(name)
    return go_to(request, f"{SECTION}?done=delete")


@router.post("/{reference}/{action}")
async def act(request: Request, reference: str, action: str, state: StateOf, caller: CallerOf) -> Response:
    """`reference` is a name, or name@number for one version."""
    adapters, tenant, actor = state.registry.adapters, caller.tenant, caller.actor
    match action:
        case "enable" | "disable":
            enabled = action == "enable"
            await _change(state, lambda: adapters.set_enabled(reference, enabled, actor=actor, tenant=tenant))
        case "pin" | "unpin":
            pinned = action == "pin"
            await _change(state, lambda: adapters.set_pinned(reference, pinned, actor=actor, tenant=tenant))
        case "load" | "evict":
            await _move(state, await asyncio.to_thread(_get, state, reference, tenant), action)
        case _:
            raise ApiError(404, f"There is no action '{action}' on an adapter.")
    return go_to(request, f"{SECTION}/{reference.partition('@')[0]}?done={action}")


def _list_template(fragment: bool, first: int) -> str:
    """The page, the table alone when a search changes it, or the rows alone when more are asked for."""
    if not fragment:
        return "adapters/list.html"
    return "adapters/_rows.html" if first else "adapters/_table.html"


def _get(state: State, name: str, tenant: str) -> Adapter:
    with in_words():
        return state.registry.adapters.get(name, tenant)


async def _change(state: State, change: Callable[[], object]) -> None:
    """Write the desired state, then bring the engine to it."""
    with in_words():
        await asyncio.to_thread(change)
        await state.reconciler.reconcile()


async def _move(state: State, adapter: Adapter, action: str) -> None:
    version = adapter.latest()
    if version is None or not adapter.enabled:
        raise ApiError(400, f"Adapter '{adapter.name}' is disabled, so there is nothing to {action}. Enable it first.")
    move = state.engine.load_adapter if action == "load" else state.engine.evict_adapter
    with in_words():
        await move(version.digest)


def _use_words(state: State, adapter: Adapter) -> str:
    """Who would notice if it were gone."""
    since = time.time() - HOUR
    count = sum(request.model == adapter.name and request.at > since for request in list(state.metrics.recent))
    requests = f"{count_words(count, 'request')} in the last hour" if count else "No requests in the last hour"
    aliases = ", ".join(sorted(adapter.aliases))
    return f"{requests}; aliases: {aliases}." if aliases else f"{requests}, no aliases."


def _notice(done: str) -> str | None:
    return NOTICES.get(done)
