"""The people of a tenant: invited with a role and a password, given others, removed."""

import asyncio
import secrets
from dataclasses import dataclass
from functools import partial
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from loraplex.registry.access.passwords import MIN_PASSWORD_LENGTH
from loraplex.registry.access.scopes import VIEWER_ROLE
from loraplex.registry.access.users import User
from loraplex.registry.registry import Registry

from ...access.caller import Caller
from ...access.sessions import login_of
from ...endpoints.authentication import client_address
from ...endpoints.dependencies import CallerOf, RegistryOf, StateOf
from ...http.refusals import as_api_error
from ...units import age_words, count_words
from ..forms import Form, read_form
from ..lists import ALL, Asked, AskedOf
from ..page import PageRoute, address_of, go_to, is_fragment, page

SECTION: Final = "/users"
ROLE_WORDS: Final = {
    "viewer": "can view adapters, memory and usage",
    "editor": "can also use models, upload adapters and change how they are served",
    "admin": "can also manage keys and users, and read the audit log",
}
NOTICES: Final = {
    "role": "Role changed. It applies from the next request.",
    "remove": "User removed and logged out everywhere.",
}
FORM: Final = {"roles": ROLE_WORDS, "password_length": MIN_PASSWORD_LENGTH}
GENERATED_BYTES: Final = 12

router = APIRouter(prefix=SECTION, include_in_schema=False, route_class=PageRoute)


@dataclass(frozen=True, slots=True)
class UserRow:
    name: str
    role: str
    is_caller: bool
    is_last_admin: bool
    created: str
    created_iso: str
    changed: str
    changed_iso: str


@dataclass(frozen=True, slots=True)
class Login:
    """What a new or forgetful user needs, shown once; `password` None: it was typed and is known."""

    name: str
    password: str | None
    words: str


@router.get("")
async def index(request: Request, registry: RegistryOf, caller: CallerOf, asked: AskedOf) -> Response:
    """The page, or for htmx the table alone."""
    if is_fragment(request):
        return page(request, "users/_table.html", SECTION, 200, **await _table(registry, caller, asked.search))
    return await _page(request, registry, caller, new_user_form(), asked=asked, done=NOTICES.get(asked.done))


@router.post("")
async def create(request: Request, state: StateOf, caller: CallerOf) -> Response:
    """The page with the login on it, this once; or the form with what is wrong with it."""
    form = await read_form(request)
    name, role, password = form.text("name"), form.text("role"), form.values.get("password", "")
    chosen = password or secrets.token_urlsafe(GENERATED_BYTES)
    with form.refusals(invalid_name="name", name_taken="name", weak_secret="password", registry_error="role"):
        work = partial(state.registry.users.create, name, chosen, role, **caller.by)
        await state.passwords.run(work, client_address(request))
    if not form.is_good:
        return await _page(request, state.registry, caller, form, status=form.status)
    made = Login(login_of(name, caller.tenant), None if password else chosen, f"User “{name}” created")
    return await _page(request, state.registry, caller, new_user_form(), status=201, made=made)


@router.get("/{user}")
async def detail(request: Request, user: str, registry: RegistryOf, caller: CallerOf, done: str = "") -> Response:
    return await _detail(request, registry, caller, user, done=NOTICES.get(done))


@router.post("/{user}/role")
async def set_role(request: Request, user: str, registry: RegistryOf, caller: CallerOf) -> Response:
    form = await read_form(request)
    with form.refusals(last_admin="role", registry_error="role"):
        await asyncio.to_thread(registry.users.set_role, user, form.text("role"), **caller.by)
    if not form.is_good:
        return await _detail(request, registry, caller, user, form, status=form.status)
    return go_to(request, f"{SECTION}/{user}?done=role")


@router.post("/{user}/password")
async def set_password(request: Request, user: str, state: StateOf, caller: CallerOf) -> Response:
    """The typed one, or a new one that is shown once. All sessions of the user end, the caller's own too."""
    form = await read_form(request)
    password = form.values.get("password", "")
    chosen = password or secrets.token_urlsafe(GENERATED_BYTES)
    with form.refusals(weak_secret="password"):
        work = partial(state.registry.users.set_password, user, chosen, role=None, **caller.by)
        await state.passwords.run(work, client_address(request))
    if not form.is_good:
        return await _detail(request, state.registry, caller, user, form, status=form.status)
    words = f"“{user}” has a new password and was logged out everywhere"
    made = Login(login_of(user, caller.tenant), None if password else chosen, words)
    return await _detail(request, state.registry, caller, user, made=made)


@router.post("/{user}/remove")
async def remove(request: Request, user: str, registry: RegistryOf, caller: CallerOf) -> Response:
    with as_api_error():
        await asyncio.to_thread(registry.users.remove, user, **caller.by)
    return go_to(request, f"{SECTION}?done=remove")


def new_user_form() -> Form:
    return Form({"role": VIEWER_ROLE})


async def _page(
    request: Request,
    registry: Registry,
    caller: Caller,
    form: Form,
    *,
    status: int = 200,
    asked: Asked = ALL,
    **more: object,
) -> Response:
    table = await _table(registry, caller, asked.search)
    frame = FORM | {"address": address_of(request), "form": form}
    return page(request, "users/page.html", SECTION, status, **frame, **table, **more)


async def _table(registry: Registry, caller: Caller, search: str) -> dict[str, object]:
    users = await asyncio.to_thread(registry.users.list, caller.tenant)
    wanted, admins = search.strip().lower(), sum(user.role == "admin" for user in users)
    rows = [_row(user, caller, admins) for user in users if wanted in user.name or wanted == user.role]
    return {"rows": rows, "any": bool(users), "found": count_words(len(rows), "user"), "search": search}


async def _detail(
    request: Request,
    registry: Registry,
    caller: Caller,
    name: str,
    form: Form | None = None,
    status: int = 200,
    **more: object,
) -> Response:
    with as_api_error():
        user = await asyncio.to_thread(registry.users.require, name, caller.tenant)
    users = await asyncio.to_thread(registry.users.list, caller.tenant)
    row = _row(user, caller, sum(one.role == "admin" for one in users))
    frame = FORM | {"address": address_of(request), "form": form or Form()}
    return page(request, "users/detail.html", SECTION, status, **frame, row=row, **more)


def _row(user: User, caller: Caller, admins: int) -> UserRow:
    session = caller.session
    return UserRow(
        name=user.name,
        role=user.role,
        is_caller=session is not None and (session.user, session.tenant) == (user.name, user.tenant),
        is_last_admin=user.role == "admin" and admins == 1,
        created=age_words(user.created_at),
        created_iso=user.created_at.isoformat(timespec="seconds"),
        changed=age_words(user.password_changed_at),
        changed_iso=user.password_changed_at.isoformat(timespec="seconds"),
    )
