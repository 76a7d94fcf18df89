"""All pages of the dashboard."""

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter

from . import adapters, cache, live, login, playground, profile, requests, system, upload

routers: Final[Sequence[APIRouter]] = (
    login.router,
    live.router,
    upload.router,
    profile.router,
    adapters.router,
    cache.router,
    playground.router,
    requests.router,
    system.router,
)
