"""The adapters: list with search, upload, one adapter's page, and what can be done to it."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from loraplex.registry.names import NAME_PATTERN, NAME_RULE
from loraplex.registry.report import Report
from loraplex.registry.views import Adapter

from ..api.refusals import in_words
from ..auth import form_fields
from ..dependencies import CallerOf, StateOf
from ..errors import ApiError
from ..registration import register_version
from ..state import State
from .adapter_rows import adapter_row, adapter_rows, facts_of, version_rows
from .page import is_fragment, page
from .snippets import snippets

SECTION: Final = "/adapters"
SEE_OTHER: Final = 303
NOTICES: Final = {
    "enabled": "Enabled: requests are served.",
    "disabled": "Disabled: requests for it are refused; running ones finish.",
    "pinned": "Pinned: it stays in memory.",
    "unpinned": "No longer pinned.",
    "load": "Loaded into memory.",
    "evict": "Evicted from memory; the next request loads it again.",
}

router = APIRouter(prefix="/adapters", include_in_schema=False)


@router.get("")
async def index(request: Request, state: StateOf, caller: CallerOf, search: str = "") -> Response:
    rows = adapter_rows(state, caller.tenant)
    wanted = search.strip().lower()
    found = [row for row in rows if wanted in row.name or row.digest.startswith(wanted)]
    template = "adapters/_rows.html" if is_fragment(request) else "adapters/list.html"
    return page(request, template, SECTION, rows=found, total=len(rows), search=search)


@router.get("/new")
async def upload(request: Request, state: StateOf) -> Response:
    limit = int(state.settings.max_adapter_bytes)
    return page(request, "adapters/new.html", SECTION, max_bytes=limit, name_pattern=NAME_PATTERN, name_rule=NAME_RULE)


@router.post("/{name}/versions")
async def register(request: Request, name: str, state: StateOf, caller: CallerOf) -> Response:
    """The report on two uploaded files as a fragment; when it has no failure, the version is served from now on."""
    fields = await form_fields(request)
    try:
        with in_words():
            added, report = await register_version(
                state, caller, name, fields.get("config_sha256", ""), fields.get("weights_sha256", "")
            )
    except ApiError as error:
        refused = msgspec.convert(error.extra.get("report", {"findings": []}), Report)
        return _report(
            request, name, refused, "Nothing was stored under this name." if refused.findings else error.message
        )
    return _report(request, name, report, version=added.version.number)


@router.get("/{name}")
async def detail(request: Request, name: str, state: StateOf, caller: CallerOf, done: str = "") -> Response:
    adapter = await asyncio.to_thread(_get, state, name, caller.tenant)
    version = adapter.latest() or adapter.versions[-1]
    report = await asyncio.to_thread(state.registry.adapters.report, f"{name}@{version.number}", caller.tenant)
    origin = str(request.base_url).rstrip("/")
    return page(
        request,
        "adapters/detail.html",
        SECTION,
        adapter=adapter_row(state, adapter, version),
        facts=facts_of(version),
        findings=report.findings,
        versions=version_rows(adapter),
        snippets=snippets(origin, name),
        actions=_actions(adapter),
        notice={"tone": "good", "text": NOTICES[done]} if done in NOTICES else None,
    )


@router.post("/{name}/delete")
async def delete(request: Request, name: str, state: StateOf, caller: CallerOf) -> Response:
    fields = await form_fields(request)
    if fields.get("confirm", "").strip() != name:
        return page(
            request,
            "error.html",
            SECTION,
            status=400,
            heading="Not deleted",
            message=f"To delete the adapter, type its name, {name}, into the field beside the button.",
        )
    await _change(state, lambda: state.registry.adapters.remove(name, actor=caller.actor, tenant=caller.tenant))
    return _back(request, "")


@router.post("/{name}/{action}")
async def act(request: Request, name: str, action: str, state: StateOf, caller: CallerOf) -> Response:
    adapters, tenant, actor = state.registry.adapters, caller.tenant, caller.actor
    match action:
        case "enable" | "disable":
            enabled = action == "enable"
            await _change(state, lambda: adapters.set_enabled(name, enabled, actor=actor, tenant=tenant))
        case "pin" | "unpin":
            pinned = action == "pin"
            await _change(state, lambda: adapters.set_pinned(name, pinned, actor=actor, tenant=tenant))
        case "load" | "evict":
            adapter = await asyncio.to_thread(_get, state, name, tenant)
            await _move(state, adapter, action)
        case _:
            raise ApiError(404, f"There is no action '{action}' on an adapter.")
    done = {"enable": "enabled", "disable": "disabled", "pin": "pinned", "unpin": "unpinned"}.get(action, action)
    return _back(request, f"/{name}?done={done}")


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
    if version is None:
        raise ApiError(400, f"Adapter '{adapter.name}' has no enabled version to {action}.")
    move = state.engine.load_adapter if action == "load" else state.engine.evict_adapter
    with in_words():
        await move(version.digest)


def _actions(adapter: Adapter) -> list[tuple[str, str]]:
    return [
        ("load", "Load now"),
        ("evict", "Evict"),
        ("unpin", "Unpin") if adapter.pinned else ("pin", "Pin"),
        ("disable", "Disable") if adapter.enabled else ("enable", "Enable"),
    ]


def _report(request: Request, name: str, report: Report, reason: str = "", version: int | None = None) -> Response:
    return page(
        request,
        "adapters/_report.html",
        SECTION,
        name=name,
        accepted=version is not None,
        version=version,
        reason=reason,
        findings=report.findings,
    )


def _back(request: Request, path: str) -> Response:
    return RedirectResponse(f"{request.scope.get('root_path', '')}{SECTION}{path}", SEE_OTHER)
