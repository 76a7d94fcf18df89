"""Where aliases are changed: in the registry here, or over a server's API; both answer the route as JSON."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from loraplex.registry.names import DEFAULT_TENANT

from ...api.answers import route_json
from ...settings.running_server import ACTOR
from ..opened import opened_registry
from ..output import Fields
from ..remote import Remote, segment
from ..settings_here import settings_here
from . import adapter_places
from .adapter_places import all_adapters, one_adapter, version_at

if TYPE_CHECKING:
    from loraplex.registry.adapters.views import Adapter
    from loraplex.registry.registry import Registry

Body = dict[str, Any]
ApiRequest = tuple[str, str, Body | None]
"""Method, what follows the alias in the path, and body."""


def changed(
    remote: Remote | None,
    name: str,
    alias: str,
    request: ApiRequest,
    here: Callable[["Registry"], "Adapter"],
    tenant: str = DEFAULT_TENANT,
) -> Fields:
    """The route after a change that a server is asked for, or that is made `here`, with whom it moves."""
    if remote is not None:
        method, ending, body = request
        answer = remote.ask(method, path_of(name, alias) + ending, body)
        return {"adapter": name, **answer["routes"][alias], "moves": answer["moves"], "message": answer["message"]}
    with opened_registry(settings_here()) as (registry, _):
        before = registry.adapters.get(name, tenant)
        after = here(registry)
        return {**as_json(after, alias), **moved_json(registry, before, after)}


def removed(remote: Remote | None, name: str, alias: str, tenant: str) -> Fields:
    """Whom the removal of an alias moves."""
    if remote is not None:
        answer = remote.ask("DELETE", path_of(name, alias))
        return {"moves": answer["moves"], "message": answer["message"]}
    with opened_registry(settings_here()) as (registry, _):
        before = registry.adapters.get(name, tenant)
        after = registry.adapters.routes.remove(name, alias, actor=ACTOR, tenant=tenant)
        return moved_json(registry, before, after)


def moved_json(registry: "Registry", before: "Adapter", after: "Adapter") -> Fields:
    """As the API tells it, by what is booked."""
    from ...management.told import changed_json
    from ...routing.moves import read_last_day
    from ...routing.traffic import booked_callers

    day = read_last_day(registry, before, with_labels=True)
    return changed_json(day, after, booked_callers(day.uses))


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
    return {"adapter": adapter.name, **route_json(adapter.routes[alias])}
