"""The keys of a tenant: made here and shown once, given other limits, revoked."""

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from loraplex.registry.access.keys import ApiKey, CreatedKey
from loraplex.registry.access.scopes import ADMIN
from loraplex.registry.registry import Registry

from ...access.caller import Caller
from ...endpoints.dependencies import CallerOf, StateOf
from ...http.refusals import as_api_error
from ...management.changes import apply_change
from ...state import State
from ...units import count_words
from ..forms import LIMITS, Form, read_form
from ..lists import ALL, Asked, AskedOf
from ..page import PageRoute, address_of, go_to, is_fragment, page
from ..snippets import client_code
from .key_form import (
    CHOICES,
    SCOPE_WORDS,
    form_of,
    new_key_form,
    read_adapters,
    read_expiry,
    read_label,
    read_scopes,
)
from .key_rows import GROUPS, key_row, key_rows, matching_keys

SECTION: Final = "/keys"
MOST_ROWS: Final = 100
NOTICES: Final = {
    "revoke": "Revoked. Requests with this key are refused with 401.",
    "change": "Saved. Running requests finish under the old limits.",
}
FORM: Final = {"limits": LIMITS, "scopes": SCOPE_WORDS, "expiries": CHOICES}

router = APIRouter(prefix=SECTION, include_in_schema=False, route_class=PageRoute)


@router.get("")
async def index(request: Request, state: StateOf, caller: CallerOf, asked: AskedOf) -> Response:
    """The page, or for htmx the table alone."""
    if is_fragment(request):
        return page(request, "keys/_table.html", SECTION, 200, **await _table(state, caller, asked))
    return await _page(request, state, caller, new_key_form(), asked=asked, done=NOTICES.get(asked.done))


@router.post("")
async def create(request: Request, state: StateOf, caller: CallerOf) -> Response:
    """The page with the new key on it, this once; or the form with what is wrong with it."""
    form = await read_form(request)
    made = await _create(state, caller, form)
    if made is None:
        return await _page(request, state, caller, form, status=form.status)
    missing = _missing(state, caller.tenant, made.key.adapters or ())
    code = client_code(address_of(request), made, state, caller.tenant)
    return await _page(request, state, caller, new_key_form(), status=201, made=made, missing=missing, code=code)


@router.get("/{prefix}")
async def detail(request: Request, prefix: str, state: StateOf, caller: CallerOf, done: str = "") -> Response:
    key = await _get(state.registry, prefix, caller.tenant)
    return _detail(request, state, caller, key, form_of(key), done=NOTICES.get(done))


@router.post("/{prefix}")
async def change(request: Request, prefix: str, state: StateOf, caller: CallerOf) -> Response:
    """Other limits, models and expiry, as the form has them."""
    key, form = await _get(state.registry, prefix, caller.tenant), await read_form(request)
    quota, adapters, expires_at = form.quota(), read_adapters(form), _new_expiry(form, key)
    if form.is_good:
        with form.refusals(registry_error="adapters"):
            await apply_change(
                state,
                state.registry.keys.change,
                prefix,
                **caller.by,
                quota=quota,
                adapters=adapters,
                expires_at=expires_at,
            )
    if not form.is_good:
        return _detail(request, state, caller, key, form, status=form.status)
    return go_to(request, f"{SECTION}/{prefix}?done=change")


@router.post("/{prefix}/revoke")
async def revoke(request: Request, prefix: str, state: StateOf, caller: CallerOf) -> Response:
    await apply_change(state, state.registry.keys.revoke, prefix, **caller.by)
    return go_to(request, f"{SECTION}?done=revoke")


async def _create(state: State, caller: Caller, form: Form) -> CreatedKey | None:
    """None: the form says why not."""
    name, scopes, adapters, quota = read_label(form), read_scopes(form), read_adapters(form), form.quota()
    expires_at = read_expiry(form, datetime.now(UTC))
    if ADMIN in scopes and adapters:
        form.errors["adapters"] = "Admin keys can use all models. Leave this blank, or clear admin."
    if form.is_good:
        with form.refusals(registry_error="adapters"):
            return await apply_change(
                state,
                state.registry.keys.create,
                name,
                scopes,
                **caller.by,
                expires_at=expires_at,
                adapters=adapters,
                quota=quota,
            )
    return None


async def _page(
    request: Request, state: State, caller: Caller, form: Form, *, status: int = 200, asked: Asked = ALL, **more: object
) -> Response:
    table = await _table(state, caller, asked)
    return page(
        request, "keys/page.html", SECTION, status, **FORM, **table, form=form, address=address_of(request), **more
    )


async def _table(state: State, caller: Caller, asked: Asked) -> dict[str, object]:
    """What the rows of the table are made of."""
    keys = await asyncio.to_thread(state.registry.keys.list, caller.tenant)
    found = matching_keys(keys, asked.search, asked.show)
    return {
        "rows": key_rows(state, found[:MOST_ROWS]),
        "any": bool(keys),
        "found": count_words(len(found), "key"),
        "hidden": max(0, len(found) - MOST_ROWS),
        "search": asked.search,
        "show": asked.show,
        "groups": GROUPS,
    }


def _detail(
    request: Request, state: State, caller: Caller, key: ApiKey, form: Form, *, status: int = 200, **more: object
) -> Response:
    return page(request, "keys/detail.html", SECTION, status, **FORM, key=key_row(state, key), form=form, **more)


async def _get(registry: Registry, prefix: str, tenant: str) -> ApiKey:
    with as_api_error():
        return await asyncio.to_thread(registry.keys.get, prefix, tenant)


def _new_expiry(form: Form, key: ApiKey) -> datetime | None:
    """The old moment to the second where the day was left as it is, also for a key that has expired."""
    if key.expires_at is not None and form.text("expires_day") == key.expires_at.date().isoformat():
        return key.expires_at if form.text("expires") == "day" else read_expiry(form, datetime.now(UTC))
    return read_expiry(form, datetime.now(UTC))


def _missing(state: State, tenant: str, names: Collection[str]) -> list[str]:
    """Of the models that a key is for, those that do not exist yet."""
    known = state.snapshots.current.adapters.get(tenant, {})
    return sorted(name for name in names if name not in known and name != state.base.name)
