"""All pages of the dashboard."""

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter

from . import (
    account,
    adapters,
    alias_section,
    audit,
    cache,
    keys,
    live,
    login,
    playground,
    profile,
    requests,
    system,
    tenants,
    upload,
    usage,
    users,
)
from .refusals import HANDLERS, page_of_crash, page_of_refusal

__all__ = ["HANDLERS", "page_of_crash", "page_of_refusal", "routers"]

routers: Final[Sequence[APIRouter]] = (
    login.router,
    account.router,
    live.router,
    upload.router,
    profile.router,
    alias_section.router,
    adapters.router,
    cache.router,
    playground.router,
    requests.router,
    usage.router,
    keys.router,
    users.router,
    tenants.router,
    audit.router,
    system.router,
)
