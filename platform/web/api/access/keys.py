"""/api/v1/keys: API keys, for administrators."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET, UnsetType
from starlette.responses import JSONResponse, Response

from loraplex.registry.access.quotas import OPEN, Quota
from loraplex.registry.access.scopes import INFERENCE

from ...endpoints.dependencies import CallerOf, RegistryOf, StateOf
from ...http.errors import invalid
from ...http.json_body import convert, read_json
from ...http.refusals import as_api_error
from ...management.changes import apply_change
from ..answers import created_key_json, key_json
from ..fields import Label, Scope

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
router = APIRouter(tags=["Keys"])


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    """`adapters`: the models it is for, by name, the base's included; absent: all of the tenant. `expires_at` in ISO
    8601 with a zone. `limits`: those that are absent are none."""

    name: Label
    scopes: tuple[Scope, ...] = (INFERENCE,)
    adapters: tuple[str, ...] | None = None
    expires_at: Moment | None = None
    limits: Quota = OPEN


class KeyChange(msgspec.Struct, forbid_unknown_fields=True):
    """Each takes the place of the old one as a whole. `adapters` null: all of the tenant; `expires_at` null: never."""

    adapters: tuple[str, ...] | UnsetType | None = UNSET
    limits: Quota | UnsetType = UNSET
    expires_at: Moment | UnsetType | None = UNSET


@router.get("/api/v1/keys")
async def list_keys(registry: RegistryOf, caller: CallerOf) -> dict[str, Any]:
    keys = await asyncio.to_thread(registry.keys.list, caller.tenant)
    return {"data": [key_json(key) for key in keys]}


@router.post("/api/v1/keys")
async def create_key(request: Request, state: StateOf, caller: CallerOf) -> Response:
    """A new key; `token` is in this answer and nowhere else."""
    fields = convert(await read_json(request, state.settings.body_timeout), NewKey)
    expires_at = None if fields.expires_at is None else _in_utc(fields.expires_at)
    if expires_at is not None and expires_at <= datetime.now(UTC):
        raise invalid("expires_at is in the past. Give a later time.", "expires_at")
    created = await apply_change(
        state,
        state.registry.keys.create,
        fields.name,
        fields.scopes,
        **caller.by,
        expires_at=expires_at,
        adapters=fields.adapters,
        quota=fields.limits,
    )
    return JSONResponse(created_key_json(created), 201)


@router.get("/api/v1/keys/{prefix}")
async def get_key(prefix: str, registry: RegistryOf, caller: CallerOf) -> dict[str, Any]:
    with as_api_error():
        return key_json(await asyncio.to_thread(registry.keys.get, prefix, caller.tenant))


@router.patch("/api/v1/keys/{prefix}")
async def change_key(prefix: str, request: Request, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """Other limits, adapters, or another expiry."""
    fields = convert(await read_json(request, state.settings.body_timeout, nulls=True), KeyChange)
    expires_at = _in_utc(fields.expires_at) if isinstance(fields.expires_at, datetime) else fields.expires_at
    key = await apply_change(
        state,
        state.registry.keys.change,
        prefix,
        **caller.by,
        quota=fields.limits,
        adapters=fields.adapters,
        expires_at=expires_at,
    )
    return key_json(key)


@router.delete("/api/v1/keys/{prefix}", status_code=204)
async def revoke_key(prefix: str, state: StateOf, caller: CallerOf) -> Response:
    await apply_change(state, state.registry.keys.revoke, prefix, **caller.by)
    return Response(status_code=204)


def _in_utc(moment: datetime) -> datetime:
    """Raises ApiError for one at the ends of the calendar, whose zone leads beyond them."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise invalid("expires_at must be in the years 1 to 9999 UTC.", "expires_at") from None
