"""Which versions an adapter's bare name may be rolled to: nobody is offered what the server would refuse."""

from collections.abc import Collection

from loraplex.registry.adapters.views import Adapter, Version
from loraplex.registry.names import DEFAULT
from loraplex.registry.registry import Registry


def aliases_in_the_way(adapter: Adapter, version: Version) -> list[str]:
    """Those whose callers would be left without an answer: without a route for the bare name newer versions are
    disabled for it."""
    if DEFAULT in adapter.routes:
        return []
    newer = {one.number for one in adapter.versions if one.number > version.number and one.enabled}
    return [f"{adapter.name}@{alias}" for alias, stable in adapter.aliases.items() if stable in newer]


def refused_numbers(registry: Registry, adapter: Adapter) -> Collection[int]:
    """Of the versions that cannot become what the bare name means. Blocks on the database."""
    if DEFAULT not in adapter.routes:
        return {one.number for one in adapter.versions if aliases_in_the_way(adapter, one)}
    return registry.adapters.routes.refusals(adapter.name, tenant=adapter.tenant).keys()


def rolling_note(adapter: Adapter) -> str:
    """What to do instead where aliases are in the way; empty where none is."""
    blocked = [one for one in adapter.versions if aliases_in_the_way(adapter, one)]
    if not blocked:
        return ""
    names = ", ".join(aliases_in_the_way(adapter, blocked[0]))
    words = f"version {blocked[0].number}" if len(blocked) == 1 else f"versions up to {blocked[-1].number}"
    return (
        f"To roll back to {words}, add a route for '{DEFAULT}' below. Rolling back here would disable newer versions, "
        f"which serve the callers of {names}."
    )
