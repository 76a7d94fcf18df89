"""What a change means to those who ask for an adapter, in the same words everywhere."""

from typing import Any

from loraplex.registry.adapters.adapters import AddedVersion
from loraplex.registry.adapters.routes import WHOLE
from loraplex.registry.adapters.views import Adapter
from loraplex.registry.names import DEFAULT

from ..routing.callers import share_warning
from ..routing.moves import LastDay, meanings, moves


def changed_fields(day: LastDay, after: Adapter, callers: int) -> dict[str, Any]:
    """Of a ChangedAdapter: whom a change has moved; `day`: of the adapter before, `callers`: in the last day."""
    before = day.adapter
    changed = [route for alias, route in after.routes.items() if route != before.routes.get(alias)]
    moved = day.words(after) if moves(before, after) else ""
    told = [moved, *(share_warning(route, callers) for route in changed)]
    return {"moves": day.told(after), "message": " ".join(filter(None, told))}


def registered_words(added: AddedVersion, day: LastDay) -> str:
    """`day`: of the adapter before."""
    name, number, after = added.name, added.version.number, added.after
    meaning = meanings(after).get(name, {})
    share, others = meaning.get(number, 0), sorted(meaning.keys() - {number})
    moved = f" {day.words(after)}" if moves(added.before, after) else ""
    if not meaning:
        return f"{name} is disabled, so no request gets it. Enable it in the dashboard.{moved}"
    if share == WHOLE:
        return f"Requests for {name} get version {number} from now on.{moved}"
    versions = " and ".join(map(str, others))
    if share:
        shared = after.routes[DEFAULT].share_by
        return f"Version {number} gets {share} % of {shared}s for {name}, version {versions} the others.{moved}"
    return f"Requests for {name} still get version {versions}. Ask for {name}@{number} to use this one.{moved}"


def added_fields(added: AddedVersion, day: LastDay) -> dict[str, Any]:
    """Of an answer's AddedVersion. `share`: per cent of the requests for the bare name that the version gets."""
    share = meanings(added.after).get(added.name, {}).get(added.version.number, 0)
    return {"share": share, "moves": day.told(added.after), "message": registered_words(added, day)}
