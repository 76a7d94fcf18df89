"""/api/v1/tenants: who shares this server, for its operator."""

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from loraplex.registry.access.quotas import OPEN, Quota, check_quota

from ...endpoints.dependencies import CallerOf, RegistryOf, StateOf
from ...http.json_body import convert, read_json
from ...http.refusals import as_api_error
from ...management.changes import apply_change
from ..answers import tenant_json
from ..fields import TenantName

router = APIRouter(tags=["Tenants"])


class NewTenant(msgspec.Struct, forbid_unknown_fields=True):
    name: TenantName
    limits: Quota = OPEN


class TenantChange(msgspec.Struct, forbid_unknown_fields=True):
    disabled: bool | None = None
    limits: Quota | None = None
    """Of all its keys and users together; takes the place of the old ones as a whole."""


@router.get("/api/v1/tenants")
async def list_tenants(registry: RegistryOf) -> dict[str, Any]:
    """All tenants, disabled ones too."""
    tenants = await asyncio.to_thread(registry.tenants.list)
    return {"data": [tenant_json(tenant) for tenant in tenants]}


@router.post("/api/v1/tenants")
async def create_tenant(request: Request, state: StateOf, caller: CallerOf) -> Response:
    """A new tenant, without users and keys: make them with ?tenant=NAME."""
    fields = convert(await read_json(request, state.settings.body_timeout), NewTenant)
    create = state.registry.tenants.create
    tenant = await apply_change(state, create, fields.name, actor=caller.actor, quota=fields.limits)
    return JSONResponse(tenant_json(tenant), 201)


@router.get("/api/v1/tenants/{tenant}")
async def get_tenant(tenant: str, registry: RegistryOf) -> dict[str, Any]:
    with as_api_error():
        return tenant_json(await asyncio.to_thread(registry.tenants.get, tenant))


@router.patch("/api/v1/tenants/{tenant}")
async def change_tenant(tenant: str, request: Request, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """Disable it, so that its keys and sessions open nothing and its adapters leave the engine, or enable it again;
    other limits."""
    change = convert(await read_json(request, state.settings.body_timeout), TenantChange)
    tenants = state.registry.tenants
    with as_api_error():
        if change.limits is not None:
            check_quota(change.limits)  # before it is disabled: both, or neither
        if change.disabled is not None:
            await asyncio.to_thread(tenants.set_disabled, tenant, change.disabled, actor=caller.actor)
        if change.limits is not None:
            await asyncio.to_thread(tenants.set_quota, tenant, change.limits, actor=caller.actor)
        found = await asyncio.to_thread(tenants.get, tenant)
    await state.reconciler.reconcile()
    return tenant_json(found)
