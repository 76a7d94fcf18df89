"""The question that an upload asks before it registers a version: whom shall it answer?"""

from collections.abc import Mapping
from dataclasses import dataclass

from loraplex.registry.adapters.activation import MODES, Activation
from loraplex.registry.adapters.routes import REQUEST, share_by_of
from loraplex.registry.adapters.views import Adapter
from loraplex.registry.errors import InvalidRoute

from ...access.caller import Caller
from ...routing.callers import few_callers_words
from ...routing.moves import meanings
from ...routing.traffic import callers_of_day
from ...state import State
from ..questions import last_day_of


@dataclass(frozen=True, slots=True)
class Placing:
    """`versions`: what the name means now, in words; `traffic`: who asked it in the last day."""

    versions: str
    traffic: str
    few_callers: str


def placing_of(state: State, caller: Caller, name: str) -> Placing | None:
    """None: no version answers requests for `name` yet, so a new one moves nobody. Blocks on the database."""
    adapter: Adapter | None = state.snapshots.current.adapters.get(caller.tenant, {}).get(name)
    meaning = {} if adapter is None else meanings(adapter).get(name, {})
    if adapter is None or not meaning:
        return None
    day = last_day_of(state.registry, caller, adapter)
    versions = " and ".join(f"version {number}" for number in meaning)
    return Placing(versions, day.traffic(), few_callers_words(callers_of_day(state.callers, adapter, day.uses)))


def activation_of(fields: Mapping[str, str]) -> Activation | None:
    """As the form says; None: it did not ask. Raises InvalidRoute."""
    if "activate" not in fields:
        return None
    mode = next((mode for mode in MODES if mode == fields["activate"]), None)
    percent = fields.get("percent", "").strip()
    if mode is None:
        raise InvalidRoute(f"activate is one of {', '.join(MODES)}.", "activate")
    if mode != "share":
        return Activation(mode)
    if not (percent.isascii() and percent.isdigit() and len(percent) <= 3):
        raise InvalidRoute(f"percent must be 1 to 99; got {percent[:20]!a}.", "percent")
    return Activation(mode, int(percent), share_by_of(fields.get("share_by", REQUEST)))
