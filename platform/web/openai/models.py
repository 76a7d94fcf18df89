"""GET /v1/models: the base model and every adapter that can be used now."""

import hashlib
from datetime import datetime
from typing import Any

from fastapi import APIRouter

from loraplex.registry.adapters.profiles import ServingProfile
from loraplex.registry.adapters.routes import Asker

from ..access.caller import Caller
from ..endpoints.dependencies import CallerOf, StateOf
from ..inference.resolve import find_model
from ..state import State

OWNER = "loraplex"
router = APIRouter(tags=["OpenAI"])


@router.get("/v1/models")
async def list_models(state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """All that `model` may be for this key, the base first; of a routed name the version that answers this key."""
    snapshot = state.registry.snapshots.current
    servable, profiles = snapshot.servable(caller.tenant, caller.only, Asker(caller.actor)), snapshot.profiles
    cards = [
        _adapter_card(state, adapter.name, version.digest, version.created_at, profiles.get(version.profile_digest))
        for adapter, version in servable
    ]
    names = (state.base.name, *state.settings.also_served_as)
    bases = [_base_card(state, caller, name) for name in names if caller.only is None or state.base.name in caller.only]
    return {"object": "list", "data": [*bases, *cards]}


@router.get("/v1/models/{name:path}")
async def get_model(name: str, state: StateOf, caller: CallerOf) -> dict[str, Any]:
    """One model by any name that `model` takes, for example adapter@alias. All models when the name is empty."""
    if not name:
        return await list_models(state, caller)
    found = find_model(state.snapshots, caller, name, Asker(caller.actor))
    if found is None:
        return _base_card(state, caller, name)
    return _adapter_card(state, name, found.digest, found.created_at, found.profile)


def _base_card(state: State, caller: Caller, name: str) -> dict[str, Any]:
    """`root`: where the model is, which is for whoever operates the server; its name for others."""
    root = state.settings.model if caller.oversees else state.base.name
    return _card(state, name, root, None, state.created)


def _adapter_card(
    state: State, name: str, digest: str, created: datetime, profile: ServingProfile | None
) -> dict[str, Any]:
    """`serving_profile`: what is said for requests that do not say it; the names alone."""
    card = _card(state, name, digest, state.base.name, int(created.timestamp()))
    return card | {"serving_profile": None if profile is None else sorted(profile.given())}


def _card(state: State, name: str, root: str, parent: str | None, created: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": OWNER,
        "root": root,
        "parent": parent,
        "max_model_len": state.max_model_len,
        "permission": [_permission(name, created)],
    }


def _permission(name: str, created: int) -> dict[str, Any]:
    return {
        "id": f"modelperm-{hashlib.sha256(name.encode()).hexdigest()[:32]}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
