"""Addresses of pages. They keep the tenant that the operator looks at, where it is not the operator's own."""

from urllib.parse import quote, urlencode

from fastapi import Request

from ..access.caller import Caller
from ..endpoints.authentication import TENANT


def root_of(request: Request) -> str:
    """The sub-path under which a proxy serves this app, without a slash at its end."""
    root: str = request.scope.get("root_path", "")
    return root.rstrip("/")


def elsewhere_of(request: Request) -> str:
    """The tenant that the operator looks at, where it is not the operator's own."""
    caller: Caller | None = getattr(request.state, "caller", None)
    return "" if caller is None else caller.elsewhere


def local_address(path: str, tenant: str = "", **query: object) -> str:
    """From the app's root on. `path` may have a query and a fragment; empty parts of `query` are left out."""
    place, mark, fragment = path.partition("#")
    place, _, given = place.partition("?")
    asked = {name.rstrip("_"): value for name, value in ({TENANT: tenant} | query).items() if value}
    queries = "&".join(part for part in (given, urlencode(asked)) if part)
    return quote(place, safe="/@%") + (f"?{queries}" if queries else "") + mark + fragment
