"""Desired beside observed: what the registry wants of an adapter, and what the engine has."""

from dataclasses import dataclass

from loraplex.registry.adapters.views import Adapter, Version

from ...api.views import residency
from ...state import State
from ..words import ON_DISK, residency_words
from .adapter_rows import obstacle_of


@dataclass(frozen=True, slots=True)
class StateRow:
    """`settled`: the engine has what is wanted."""

    label: str
    desired: str
    observed: str
    settled: bool


def state_rows(state: State, adapter: Adapter, version: Version, operator: bool) -> list[StateRow]:
    """None where nothing is desired: the adapter or all its versions are disabled. `operator`: with the revision,
    which grows with every tenant's changes."""
    if not adapter.enabled or not version.enabled:
        return []
    status = residency(state).get(version.digest)
    obstacle = obstacle_of(state.reconciler, adapter, version)
    resident = status is not None and status.state == "resident"
    known = "not known to the engine" if status is None else f"{version.digest[:12]} known to the engine"
    serves, settled = (known, status is not None) if obstacle is None else (obstacle[0], False)
    pinned = version.pinned or adapter.pinned
    where = (ON_DISK if status is None else residency_words(status)).removeprefix("Ready · ")
    return [
        StateRow("Serves", f"version {version.number}", serves, settled),
        StateRow("Memory", "in memory (pinned)" if pinned else "loaded on demand", where, not pinned or resident),
        *([_revision(state)] if operator else []),
    ]


def _revision(state: State) -> StateRow:
    wanted, reached = state.snapshots.current.revision, state.reconciler.revision
    return StateRow("Revision", str(wanted), str(reached) if reached >= 0 else "none yet", reached == wanted)
