"""States of engine and adapters in words a person reads; the same ones on every page."""

import re
from collections.abc import Collection, Mapping
from typing import Final

from loraplex.engine.ipc.client import EngineState
from loraplex.engine.status import AdapterStatus

from ..http.errors import ApiError
from ..state import State
from ..targets import grouped
from ..units import size_words, span_words

TONES: Final = {"resident": "good", "loading": "warn", "failed": "bad", "registered": ""}
"""Of each state of an adapter, those first that lists show first."""
NOT_USED_YET: Final = "not used yet"
ON_DISK: Final = "Ready · on disk"
IN_HOST_CACHE: Final = "Ready · in host cache"
OTHER: Final = "another adapter"
"""One that has no name any more, or none in this tenant."""


def engine_words(state: State) -> tuple[str, str]:
    """The engine's state and its tone."""
    if state.start_error is not None:
        return "Failed to start", "bad"
    if state.engine.state is not EngineState.READY:
        return state.engine.state.value.capitalize(), "warn"
    if not state.engine.ready():
        return "Not responding", "bad"
    info = state.engine.info
    return f"Ready · {'CPU' if info is None or info.device == 'cpu' else 'GPU'}", "good"


def targets_words(modules: Collection[str], linears: Collection[str]) -> str:
    """Which linears of its layers an adapter changes, in the order of `linears`, which are all that the base has."""
    if set(modules) == set(linears):
        return "all linears"
    changed = set(modules)
    known = [name if "." in name else name.removesuffix("_proj") for name in linears if name in changed]
    return ", ".join(grouped([*known, *sorted(changed.difference(linears))]))


def residency_words(status: AdapterStatus) -> str:
    match status.state:
        case "resident":
            return "Ready · in memory"
        case "loading":
            return "Loading"
        case "failed":
            return f"Failed: {status.error}"
    return IN_HOST_CACHE if status.tier == "host" else ON_DISK


def tile_words(status: AdapterStatus) -> str:
    """What a resident adapter is."""
    parts = [f"rank {status.rank}", size_words(status.bytes)]
    return " · ".join([*parts, "pinned"] if status.pinned else parts)


def activity_words(status: AdapterStatus) -> str:
    if status.running:
        return f"{status.running} running"
    since = status.last_used_seconds_ago
    return NOT_USED_YET if since is None else f"idle {span_words(since)}"


def in_labels(error: ApiError, labels: Mapping[str, str]) -> str:
    """Its message with the page's `labels` in place of the query's names of fields."""
    field = error.param or ""
    if field not in labels:
        return error.message
    return re.sub(rf"\b{re.escape(field)}\b", f"“{labels[field]}”", error.message, count=1)
