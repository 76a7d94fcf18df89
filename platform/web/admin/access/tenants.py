"""Who shares this server, for its operator: tenants with what they have, their limits, and whether they are let in."""

import asyncio
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from loraplex.registry.access.tenants import Tenant, TenantCounts
from loraplex.registry.database.tables import DEFAULT_TENANT
from loraplex.registry.registry import Registry

from ...endpoints.dependencies import CallerOf, StateOf
from ...http.errors import ApiError
from ...http.refusals import as_api_error
from ...management.changes import apply_change
from ...quotas.quotas import Quotas
from ...state import State
from ...units import age_words, count_words
from ..figures.day_use import DayUse, day_use
from ..forms import LIMITS, Form, quota_values, quota_words, read_form
from ..lists import ALL, Asked, AskedOf
from ..page import PageRoute, go_to, is_fragment, page

SECTION: Final = "/tenants"
NOTICES: Final = {
    "change": "Saved. The limits apply from the next request.",
    "disable": "Disabled. Its keys and sessions no longer work, and its adapters are unloaded. Nothing was deleted.",
    "enable": "Enabled. Its keys, sessions and adapters work again.",
}

router = APIRouter(prefix=SECTION, include_in_schema=False, route_class=PageRoute)


@dataclass(frozen=True, slots=True)
class TenantRow:
    name: str
    state: str
    tone: str
    enabled: bool
    operates: bool
    """It is the operator's own, which cannot be disabled."""
    adapters: str
    keys: str
    users: str
    limits: tuple[str, ...]
    today: DayUse
    created: str
    created_iso: str


@router.get("")
async def index(request: Request, state: StateOf, asked: AskedOf) -> Response:
    """The page, or for htmx the table alone."""
    if is_fragment(request):
        return page(request, "tenants/_table.html", SECTION, 200, **await _table(state, asked.search))
    return await _page(request, state, Form(), asked=asked, done=NOTICES.get(asked.done))


@router.post("")
async def create(request: Request, state: StateOf, caller: CallerOf) -> Response:
    form = await read_form(request)
    name, quota = form.text("name"), form.quota()
    if form.is_good:
        with form.refusals(invalid_name="name", name_taken="name"):
            await apply_change(state, state.registry.tenants.create, name, actor=caller.actor, quota=quota)
    if not form.is_good:
        return await _page(request, state, form, status=form.status)
    return go_to(request, f"{SECTION}/{name}")


@router.get("/{tenant}")
async def detail(request: Request, tenant: str, state: StateOf, done: str = "") -> Response:
    found = await _get(state.registry, tenant)
    return await _detail(request, state, found, Form(quota_values(found.quota)), done=NOTICES.get(done))


@router.post("/{tenant}")
async def change(request: Request, tenant: str, state: StateOf, caller: CallerOf) -> Response:
    """Other limits."""
    found, form = await _get(state.registry, tenant), await read_form(request)
    quota = form.quota()
    if not form.is_good:
        return await _detail(request, state, found, form, status=form.status)
    await apply_change(state, state.registry.tenants.set_quota, tenant, quota, actor=caller.actor)
    return go_to(request, f"{SECTION}/{tenant}?done=change")


@router.post("/{tenant}/{action}")
async def act(request: Request, tenant: str, action: str, state: StateOf, caller: CallerOf) -> Response:
    if action not in ("disable", "enable"):
        raise ApiError(404, f"There is no action '{action}' on a tenant.")
    await apply_change(state, state.registry.tenants.set_disabled, tenant, action == "disable", actor=caller.actor)
    return go_to(request, f"{SECTION}/{tenant}?done={action}")


async def _page(
    request: Request, state: State, form: Form, *, status: int = 200, asked: Asked = ALL, **more: object
) -> Response:
    table = await _table(state, asked.search)
    return page(request, "tenants/page.html", SECTION, status, form=form, limits=LIMITS, **table, **more)


async def _table(state: State, search: str) -> dict[str, object]:
    tenants = await asyncio.to_thread(state.registry.tenants.list)
    counts, wanted = await asyncio.to_thread(state.registry.tenants.counts), search.strip().lower()
    rows = [_row(state.quotas, one, counts.get(one.name, TenantCounts())) for one in tenants if wanted in one.name]
    return {"rows": rows, "alone": len(tenants) == 1, "found": count_words(len(rows), "tenant"), "search": search}


async def _detail(
    request: Request, state: State, tenant: Tenant, form: Form, *, status: int = 200, **more: object
) -> Response:
    counts = await asyncio.to_thread(state.registry.tenants.counts)
    row = _row(state.quotas, tenant, counts.get(tenant.name, TenantCounts()))
    return page(request, "tenants/detail.html", SECTION, status, form=form, limits=LIMITS, row=row, **more)


async def _get(registry: Registry, name: str) -> Tenant:
    with as_api_error():
        return await asyncio.to_thread(registry.tenants.get, name)


def _row(quotas: Quotas, tenant: Tenant, counts: TenantCounts) -> TenantRow:
    enabled = tenant.disabled_at is None
    return TenantRow(
        name=tenant.name,
        state="Enabled" if enabled else "Disabled",
        tone="good" if enabled else "warn",
        enabled=enabled,
        operates=tenant.name == DEFAULT_TENANT,
        adapters=f"{counts.adapters:,}",
        keys=f"{counts.keys:,}",
        users=f"{counts.users:,}",
        limits=tuple(quota_words(tenant.quota)),
        today=day_use(quotas, tenant.name, "", tenant.quota),
        created=age_words(tenant.created_at),
        created_iso=tenant.created_at.isoformat(timespec="seconds"),
    )
