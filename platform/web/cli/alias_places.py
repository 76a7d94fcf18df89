"""Where aliases are changed: in the registry here, or over a server's API; both answer the route as JSON."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..api.answers import route_json
from ..settings import Settings
from . import adapter_places
from .adapter_places import all_adapters, one_adapter, version_at
from .opened import opened_registry
from .output import Fields
from .remote import Remote, remote_and_tenant, segment

if TYPE_CHECKING:
    from loraplex.registry.registry import Registry
    from loraplex.registry.views import Adapter

Body = dict[str, Any]
Asked = tuple[str, str, Body | None]
"""Method, what follows the alias in the path, and body."""


def aliases_place(server: str, key: str, tenant: str) -> tuple[Remote | None, str]:
    """As remote_and_tenant; ValueError for a tenant that is named to the API, which changes the key's own alone."""
    if server and tenant:
        raise ValueError("Over the API aliases are those of the key's tenant: leave --tenant out.")
    return (None, tenant) if tenant else remote_and_tenant(server, key, tenant)


def changed(
    remote: Remote | None, name: str, alias: str, request: Asked, here: Callable[["Registry"], "Adapter"]
) -> Fields:
    """The route after a change that a server is asked for, or that is made `here`."""
    if remote is not None:
        method, ending, body = request
        return {"adapter": name, **remote.ask(method, path_of(name, alias) + ending, body)["routes"][alias]}
    with opened_registry(Settings()) as (registry, _):
        return as_json(here(registry), alias)


def listed(remote: Remote | None, name: str, tenant: str) -> Sequence[Fields]:
    """Of one adapter, or of all."""
    if remote is None:
        with opened_registry(Settings()) as (registry, _):
            registry.tenants.get(tenant)  # one that is misspelt has no aliases, too
            here = [registry.adapters.get(name, tenant)] if name else registry.adapters.list(tenant)
        return [as_json(adapter, alias) for adapter in here for alias in adapter.routes]
    there = [one_adapter(remote, name)] if name else all_adapters(remote)
    return [{"adapter": one["name"], **route} for one in there for route in one["routes"].values()]


def number_at(remote: Remote, name: str, version: str) -> int:
    """Of a version that may be named by an alias."""
    if version.isdecimal():
        return int(version)
    return int(version_at(one_adapter(remote, name), version)["number"])


def path_of(name: str, alias: str) -> str:
    return f"{adapter_places.path_of(name)}/aliases/{segment(alias)}"


def as_json(adapter: "Adapter", alias: str) -> dict[str, Any]:
    return {"adapter": adapter.name, **msgspec.to_builtins(route_json(adapter.routes[alias]))}
