"""Where aliases are changed: in the registry here, or over a server's API; both answer the route as JSON."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..api.answers import route_json
from . import adapter_places
from .adapter_places import all_adapters, one_adapter, version_at
from .opened import opened_registry
from .output import Fields
from .remote import Remote, remote_and_tenant, segment
from .settings_here import settings_here

if TYPE_CHECKING:
    from loraplex.registry.registry import Registry
    from loraplex.registry.views import Adapter

Body = dict[str, Any]
Asked = tuple[str, str, Body | None]
"""Method, what follows the alias in the path, and body."""


def adapters_place(server: str, key: str, tenant: str) -> tuple[Remote | None, str]:
    """As remote_and_tenant; ValueError for a tenant that is named to the API, which changes the key's own alone."""
    if server and tenant:
        raise ValueError("Over the API adapters are those of the key's tenant: leave --tenant out.")
    return (None, tenant) if tenant else remote_and_tenant(server, key, tenant)


def changed(
    remote: Remote | None, name: str, alias: str, request: Asked, here: Callable[["Registry"], "Adapter"]
) -> Fields:
    """The route after a change that a server is asked for, or that is made `here`."""
    if remote is not None:
        method, ending, body = request
        return {"adapter": name, **remote.ask(method, path_of(name, alias) + ending, body)["routes"][alias]}
    with opened_registry(settings_here()) as (registry, _):
        return as_json(here(registry), alias)


def listed(remote: Remote | None, name: str, tenant: str) -> Sequence[Fields]:
    """Of one adapter, or of all."""
    adapters = [one_adapter(remote, name, tenant)] if name else all_adapters(remote, tenant)
    return [{"adapter": one["name"], **route} for one in adapters for route in one["routes"].values()]


def number_at(remote: Remote, name: str, version: str) -> int:
    """Of a version that may be named by an alias."""
    if version.isdecimal():
        return int(version)
    return int(version_at(one_adapter(remote, name, remote.tenant), version)["number"])


def path_of(name: str, alias: str) -> str:
    return f"{adapter_places.path_of(name)}/aliases/{segment(alias)}"


def as_json(adapter: "Adapter", alias: str) -> dict[str, Any]:
    return {"adapter": adapter.name, **msgspec.to_builtins(route_json(adapter.routes[alias]))}
