"""Parity certificates over HTTP: of a version, of the base, and the prompts that an adapter's are measured on."""

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from loraplex.registry.certificates.certificates import Subject

from ...access.caller import Caller
from ...endpoints.dependencies import CallerOf, RegistryOf, StateOf
from ...http.json_body import convert, read_json
from ...http.refusals import as_api_error
from ...management.changes import apply_change
from ...state import State
from .certification import BASE, request_certificate, standing_json, standing_of, version_subject

router = APIRouter()


class Prompts(msgspec.Struct, forbid_unknown_fields=True):
    prompts: list[str]


@router.get("/api/v1/adapters/{reference}/certificate", tags=["Adapters"])
async def get_certificate(reference: str, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """How a version stands: name, name@version or name@alias."""
    return standing_json(await standing_of(state, await version_subject(state, caller, reference)), caller)


@router.post("/api/v1/adapters/{reference}/certify", tags=["Adapters"], status_code=202)
async def certify(
    reference: str, state: StateOf, caller: CallerOf, response: Response, anew: bool = False
) -> dict[str, Any]:
    """Have a version measured in the background, after whatever was asked for before. One that has a valid certificate
    is measured again only if asked to (`anew`)."""
    subject = await version_subject(state, caller, reference)
    return await _ask(state, caller, subject, response, anew)


@router.get("/api/v1/engine/certificate", tags=["Engine"])
async def get_base_certificate(state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """How the base itself stands."""
    return standing_json(await standing_of(state, BASE), caller)


@router.post("/api/v1/engine/certify", tags=["Engine"], status_code=202)
async def certify_base(state: StateOf, caller: CallerOf, response: Response, anew: bool = False) -> dict[str, Any]:
    """Have the base itself measured in the background, on the same terms."""
    return await _ask(state, caller, BASE, response, anew)


@router.get("/api/v1/adapters/{name}/prompts", tags=["Adapters"])
async def get_prompts(name: str, registry: RegistryOf, caller: CallerOf) -> dict[str, Any]:
    """What its certificates are measured on; null: generated prompts."""
    with as_api_error():
        return {"prompts": await asyncio.to_thread(registry.adapters.prompts, name, caller.tenant)}


@router.put("/api/v1/adapters/{name}/prompts", tags=["Adapters"])
async def set_prompts(name: str, request: Request, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """Have its certificates measured on these; those on other prompts hold no more."""
    prompts = convert(await read_json(request, state.settings.body_timeout), Prompts).prompts
    await apply_change(state, state.registry.adapters.set_prompts, name, prompts, **caller.by)
    return {"prompts": prompts}


@router.delete("/api/v1/adapters/{name}/prompts", tags=["Adapters"], status_code=204)
async def remove_prompts(name: str, state: StateOf, caller: CallerOf) -> Response:
    """Have them generated again."""
    await apply_change(state, state.registry.adapters.set_prompts, name, None, **caller.by)
    return Response(status_code=204)


async def _ask(state: State, caller: Caller, subject: Subject, response: Response, anew: bool) -> dict[str, Any]:
    standing = await request_certificate(state, caller, subject, anew)
    if standing.state not in ("waiting", "running"):
        response.status_code = 200  # nothing had to be measured
    return standing_json(standing, caller)
