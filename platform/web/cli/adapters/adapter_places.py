"""Where adapters are looked up and removed: in the registry here, or over a server's API; both answer the same JSON."""

from collections.abc import Sequence

import msgspec

from loraplex.registry.errors import UnknownAdapter
from loraplex.registry.names import LATEST, parse_reference
from loraplex.registry.report import Report

from ...api.answers import registered_json
from ...settings.running_server import ACTOR
from ..opened import opened_registry
from ..output import Fields
from ..remote import Remote, segment
from ..settings_here import settings_here


def all_adapters(remote: Remote | None, tenant: str) -> Sequence[Fields]:
    if remote is not None:
        listed: Sequence[Fields] = remote.ask("GET", "/adapters")["data"]
        return listed
    with opened_registry(settings_here()) as (registry, _):
        registry.tenants.get(tenant)  # one that is misspelt has no adapters, too
        return [registered_json(adapter) for adapter in registry.adapters.list(tenant)]


def one_adapter(remote: Remote | None, name: str, tenant: str) -> Fields:
    if remote is not None:
        return remote.ask("GET", path_of(name))
    with opened_registry(settings_here()) as (registry, _):
        return registered_json(registry.adapters.get(name, tenant))


def adapter_and_version(remote: Remote | None, reference: str, tenant: str) -> tuple[Fields, Fields]:
    """The adapter, and the version that is meant: for a bare name what it means, else the newest."""
    parsed = parse_reference(reference)
    adapter = one_adapter(remote, parsed.name, tenant)
    if parsed.selector is None:
        return adapter, current_version(adapter)
    return adapter, version_at(adapter, parsed.selector)


def current_version(adapter: Fields) -> Fields:
    """What the bare name means; the newest where it means none."""
    newest: Fields = adapter["versions"][0]
    return newest if adapter["current"] is None else version_at(adapter, adapter["current"])


def version_at(adapter: Fields, selector: int | str) -> Fields:
    """By number or alias."""
    named = adapter["latest"] if selector == LATEST else adapter["aliases"].get(selector, selector)
    for version in adapter["versions"]:
        if version["number"] == named:
            found: Fields = version
            return found
    numbers = ", ".join(str(version["number"]) for version in adapter["versions"])
    raise UnknownAdapter(f"Adapter '{adapter['name']}' has no version '{selector}'. It has {numbers}.")


def report_of(remote: Remote | None, reference: str, tenant: str) -> Report:
    """What the checks said of a version."""
    if remote is not None:
        return msgspec.convert(remote.ask("GET", f"{path_of(reference)}/report"), Report)
    with opened_registry(settings_here()) as (registry, _):
        return registry.adapters.report(reference, tenant)


def remove_adapter(remote: Remote | None, reference: str, tenant: str) -> None:
    if remote is not None:
        remote.ask("DELETE", path_of(reference))
        return
    with opened_registry(settings_here()) as (registry, _):
        registry.adapters.remove(reference, actor=ACTOR, tenant=tenant)


def path_of(reference: str) -> str:
    return f"/adapters/{segment(reference)}"
