"""Addresses of pages that stay with the tenant that is looked at: the caller's own, or for the operator any other."""

from collections.abc import Callable
from urllib.parse import quote, urlencode

from fastapi import Request

from ..auth import Caller
from .page import root_of


def local_address(path: str, elsewhere: str = "", **query: object) -> str:
    """From the app's root on. `elsewhere`: another tenant than one's own; empty parts of the query are left out."""
    asked = {name.rstrip("_"): value for name, value in ({"tenant": elsewhere} | query).items() if value}
    return quote(path, safe="/@") + (f"?{urlencode(asked)}" if asked else "")


def elsewhere_of(caller: Caller, tenant: str) -> str:
    """The tenant's name where it is not the caller's own."""
    return "" if tenant == caller.tenant else tenant


def tenant_frame(request: Request, caller: Caller, tenant: str) -> dict[str, str | Callable[..., str]]:
    """What the templates of these pages need: `elsewhere`, and `to`, which makes addresses."""
    elsewhere, root = elsewhere_of(caller, tenant), root_of(request)

    def to(path: str, **query: object) -> str:
        return root + local_address(path, elsewhere, **query)

    return {"elsewhere": elsewhere, "to": to}
