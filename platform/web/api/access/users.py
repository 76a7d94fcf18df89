"""/api/v1/users: people of a tenant, for its admins; /api/v1/me: who asks."""

import asyncio
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from loraplex.registry.access.passwords import check_password

from ...endpoints.authentication import client_address
from ...endpoints.dependencies import CallerOf, RegistryOf, StateOf
from ...http.errors import ApiError, forbidden
from ...http.json_body import convert, read_json
from ...http.refusals import as_api_error
from ..answers import user_json
from ..fields import Password, Role, UserName

router = APIRouter(tags=["Users"])


class NewUser(msgspec.Struct, forbid_unknown_fields=True):
    name: UserName
    password: Password
    role: Role


class UserChange(msgspec.Struct, forbid_unknown_fields=True):
    """A new password ends all sessions of the user."""

    role: Role | None = None
    password: Password | None = None


class PasswordChange(msgspec.Struct, forbid_unknown_fields=True):
    current: str
    new: Password


@router.get("/api/v1/me")
async def get_me(caller: CallerOf) -> dict[str, Any]:
    """Whose credential this is, and what it may do."""
    return {"tenant": caller.tenant, "actor": caller.actor, "permissions": sorted(caller.permissions)}


@router.put("/api/v1/me/password", status_code=204)
async def change_own_password(request: Request, state: StateOf, caller: CallerOf) -> Response:
    """Ends all sessions, this one too."""
    fields = convert(await read_json(request, state.settings.body_timeout), PasswordChange)
    if caller.session is None:
        raise forbidden("An API key has no password. Log in as a user to change yours.")
    address = client_address(request)
    if not await state.passwords.run(partial(state.sessions.confirm, caller.session, fields.current, address), address):
        raise ApiError(400, "The current password is wrong.", param="current", code="wrong_password")
    user, by = caller.session.user, {"actor": f"user:{caller.session.user}", "tenant": caller.session.tenant}
    with as_api_error("new"):
        change = partial(state.registry.users.set_password, user, fields.new, role=None, **by)
        await state.passwords.run(change, address)
    return Response(status_code=204)


@router.get("/api/v1/users")
async def list_users(registry: RegistryOf, caller: CallerOf) -> dict[str, Any]:
    users = await asyncio.to_thread(registry.users.list, caller.tenant)
    return {"data": [user_json(user) for user in users]}


@router.post("/api/v1/users")
async def create_user(request: Request, state: StateOf, caller: CallerOf) -> Response:
    fields = convert(await read_json(request, state.settings.body_timeout), NewUser)
    with as_api_error():
        work = partial(state.registry.users.create, fields.name, fields.password, fields.role, **caller.by)
        user = await state.passwords.run(work, client_address(request))
    return JSONResponse(user_json(user), 201)


@router.patch("/api/v1/users/{user}")
async def change_user(user: str, request: Request, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """Another role, another password, or both."""
    change = convert(await read_json(request, state.settings.body_timeout), UserChange)
    users = state.registry.users
    with as_api_error():
        found = await asyncio.to_thread(users.require, user, caller.tenant)
        if change.password is not None:
            check_password(change.password)  # before the role is another: both, or neither
        if change.role is not None:
            found = await asyncio.to_thread(users.set_role, user, change.role, **caller.by)
        if change.password is not None:
            work = partial(users.set_password, user, change.password, role=None, **caller.by)
            found = await state.passwords.run(work, client_address(request))
    return user_json(found)


@router.delete("/api/v1/users/{user}", status_code=204)
async def remove_user(user: str, registry: RegistryOf, caller: CallerOf) -> Response:
    """With all sessions."""
    with as_api_error():
        await asyncio.to_thread(registry.users.remove, user, **caller.by)
    return Response(status_code=204)
