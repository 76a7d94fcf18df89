"""The system page: is all well, what runs here, and with which settings."""

import asyncio
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...endpoints.dependencies import StateOf
from ...settings.in_force import obstacle_to_restart
from ..page import PageRoute, page
from .system_facts import device_facts, health, model_facts, setting_rows, versions

SECTION: Final = "/system"

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/system")
async def index(request: Request, state: StateOf) -> Response:
    return page(
        request,
        "system.html",
        SECTION,
        checks=await asyncio.to_thread(health, state),
        model=model_facts(state),
        device=device_facts(state.engine),
        versions=await asyncio.to_thread(versions),
        settings=await asyncio.to_thread(setting_rows, state),
        obstacle=await asyncio.to_thread(obstacle_to_restart, state.settings),
    )
