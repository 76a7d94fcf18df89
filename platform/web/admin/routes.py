"""All pages of the dashboard."""

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter

from . import adapters, alias_section, cache, live, login, playground, requests, system, upload

routers: Final[Sequence[APIRouter]] = (
    login.router,
    live.router,
    upload.router,
    adapters.router,
    alias_section.router,
    cache.router,
    playground.router,
    requests.router,
    system.router,
)
