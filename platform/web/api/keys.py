"""/api/v1/keys: API keys, for administrators."""

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from loraplex.registry.keys import INFERENCE, ApiKey

from ..dependencies import CallerOf, StateOf, TenantOf
from ..json_body import convert, read_json
from .refusals import in_words

router = APIRouter(tags=["Keys"])


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    scopes: tuple[str, ...] = (INFERENCE,)


@router.get("/api/v1/keys")
async def list_keys(state: StateOf, tenant: TenantOf) -> dict[str, Any]:
    keys = await asyncio.to_thread(state.registry.keys.list, tenant)
    return {"data": [_key_json(key) for key in keys]}


@router.post("/api/v1/keys")
async def create_key(request: Request, state: StateOf, caller: CallerOf, tenant: TenantOf) -> Response:
    """A new key; `token` is in this answer and nowhere else."""
    fields = convert(await read_json(request, state.settings.body_timeout), NewKey)
    with in_words():
        created = await asyncio.to_thread(
            state.registry.keys.create, fields.name, fields.scopes, actor=caller.actor_in(tenant), tenant=tenant
        )
    await state.reconciler.reconcile()
    return JSONResponse({"token": created.token, **_key_json(created.key)}, 201)


@router.delete("/api/v1/keys/{prefix}", status_code=204)
async def revoke_key(prefix: str, state: StateOf, caller: CallerOf, tenant: TenantOf) -> Response:
    with in_words():
        await asyncio.to_thread(state.registry.keys.revoke, prefix, actor=caller.actor_in(tenant), tenant=tenant)
    await state.reconciler.reconcile()
    return Response(status_code=204)


def _key_json(key: ApiKey) -> dict[str, Any]:
    moments = {name: getattr(key, name) for name in ("created_at", "last_used_at", "expires_at", "revoked_at")}
    shown = {name: moment.isoformat() if moment else None for name, moment in moments.items()}
    return {"prefix": key.prefix, "name": key.name, "scopes": sorted(key.scopes), "created_by": key.created_by, **shown}
