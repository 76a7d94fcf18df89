"""Where aliases are changed: in the registry here, or over a server's API; both answer the route as JSON."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from loraplex.registry.errors import InvalidRoute
from loraplex.registry.names import LATEST
from loraplex.registry.registry import Registry
from loraplex.registry.tables import DEFAULT_TENANT
from loraplex.registry.views import Adapter

from ..api.views import route_json
from ..settings import Settings
from .opened import opened_registry
from .remote import Remote

Body = dict[str, Any]
Asked = tuple[str, str, Body | None]
"""Method, what follows the alias in the path, and body."""


def remote_of(server: str, key: str, tenant: str) -> Remote | None:
    """None: the database here."""
    if server and tenant != DEFAULT_TENANT:
        raise ValueError("Over the API aliases are those of the key's tenant: leave --tenant out.")
    return Remote(server, key) if server else None


def changed(
    remote: Remote | None, name: str, alias: str, request: Asked, here: Callable[[Registry], Adapter]
) -> Mapping[str, Any]:
    """The route after a change that a server is asked for, or that is made `here`."""
    if remote is not None:
        method, ending, body = request
        return {"adapter": name, **remote.ask(method, path_of(name, alias) + ending, body)["routes"][alias]}
    with opened_registry(Settings()) as (registry, _):
        return as_json(here(registry), alias)


def listed(remote: Remote | None, name: str, tenant: str) -> Sequence[Mapping[str, Any]]:
    """Of one adapter, or of all."""
    if remote is None:
        with opened_registry(Settings()) as (registry, _):
            here = [registry.adapters.get(name, tenant)] if name else registry.adapters.list(tenant)
        return [as_json(adapter, alias) for adapter in here for alias in adapter.routes]
    there = [_adapter_at(remote, name)] if name else remote.ask("GET", "/adapters")["data"]
    return [{"adapter": one["name"], **route} for one in there for route in one["routes"].values()]


def number_at(remote: Remote, name: str, version: str) -> int:
    """Of a version that may be named by an alias."""
    if version.isdecimal():
        return int(version)
    adapter = _adapter_at(remote, name)
    number = adapter["latest"] if version == LATEST else adapter["aliases"].get(version)
    if number is None:
        raise InvalidRoute(f"Adapter '{name}' has no version '{version}'.", "version")
    return int(number)


def path_of(name: str, alias: str) -> str:
    return f"/adapters/{quote(name, safe='')}/aliases/{quote(alias, safe='')}"


def _adapter_at(remote: Remote, name: str) -> dict[str, Any]:
    return remote.ask("GET", f"/adapters/{quote(name, safe='')}")


def as_json(adapter: Adapter, alias: str) -> dict[str, Any]:
    return {"adapter": adapter.name, **msgspec.to_builtins(route_json(adapter.routes[alias]))}
