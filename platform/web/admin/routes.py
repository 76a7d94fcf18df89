"""All pages of the dashboard."""

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter

from . import playground
from .access import account, keys, login, tenants, users
from .adapters import adapters, profile, upload
from .aliases import alias_section
from .audit import audit
from .batches import batches
from .cache import cache
from .overview import live, system
from .refusals import HANDLERS, page_of_crash, page_of_refusal
from .requests import requests
from .usage import usage

__all__ = ["HANDLERS", "page_of_crash", "page_of_refusal", "routers"]

routers: Final[Sequence[APIRouter]] = (
    login.router,
    account.router,
    live.front,
    live.router,
    upload.router,
    profile.router,
    alias_section.router,
    adapters.router,
    cache.router,
    playground.router,
    requests.router,
    batches.router,
    usage.router,
    keys.router,
    users.router,
    tenants.router,
    audit.router,
    system.router,
)
