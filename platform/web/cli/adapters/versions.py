"""Which version of an adapter a reference means, from what the API answers of the adapter."""

from loraplex.registry.errors import UnknownAdapter
from loraplex.registry.names import LATEST, parse_reference

from ..admin_api import AdminApi, segment
from ..output import Fields


def adapter_path(reference: str) -> str:
    return f"/adapters/{segment(reference)}"


def adapter_and_version(api: AdminApi, reference: str) -> tuple[Fields, Fields]:
    """The adapter, and the version that is meant: for a bare name what it means, else the newest."""
    parsed = parse_reference(reference)
    adapter = api.ask("GET", adapter_path(parsed.name))
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
