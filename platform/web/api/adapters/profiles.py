"""/api/v1/adapters/NAME[@VERSION]/profile: how a version is asked where requests leave something out."""

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...access.caller import Caller
from ...endpoints.dependencies import CallerOf, StateOf
from ...http.json_body import read_json
from ...management.profile_change import clear_profile, find_profile, set_profile

if TYPE_CHECKING:
    from ...state import State

router = APIRouter(tags=["Adapters"])


@router.get("/api/v1/adapters/{reference}/profile")
async def get_profile(reference: str, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """Of a version: name (the one that it means), name@version or name@alias. null: none."""
    return await _as_json(state, caller, reference)


@router.put("/api/v1/adapters/{reference}/profile")
async def put_profile(reference: str, request: Request, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """Replace it as a whole. Requests that run keep the one they began with."""
    document = await read_json(request, state.settings.body_timeout)
    await set_profile(state, caller, reference, document)
    return await _as_json(state, caller, reference)


@router.delete("/api/v1/adapters/{reference}/profile", status_code=204)
async def delete_profile(reference: str, state: StateOf, caller: CallerOf) -> Response:
    """Remove the serving profile of the version."""
    await clear_profile(state, caller, reference)
    return Response(status_code=204)


async def _as_json(state: "State", caller: Caller, reference: str) -> dict[str, Any]:
    version, profile = await find_profile(state, caller, reference)
    given = None if profile is None else profile.given()
    return {"version": version.number, "digest": version.profile_digest, "profile": given}
