"""/api/v1/settings: what the server runs with, for its operator."""

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter

from ...endpoints.dependencies import StateOf
from ...settings.in_force import obstacle_to_restart, settings_in_force

router = APIRouter(tags=["Engine"])


@router.get("/api/v1/settings")
async def get_settings(state: StateOf) -> dict[str, Any]:
    """Each setting by name, secrets masked: its `value` in force, and its `source`. `given` is what flag, environment,
    file or default say: null, "" or "auto" leave it to the server. Where that has changed since the start it
    `needs_restart`, and `next` is the new value. `obstacle`: why a restart would fail; empty: it would not."""
    rows = await asyncio.to_thread(settings_in_force, state.settings, state.engine.info)
    obstacle = await asyncio.to_thread(obstacle_to_restart, state.settings)
    return {"data": msgspec.to_builtins(rows), "obstacle": obstacle}
