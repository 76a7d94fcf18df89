"""A request that an alias has led to a version: its end is noted for the route, and its answer names the version."""

from functools import partial
from typing import Final, Protocol

from loraplex.engine.ipc.client import RequestRejected
from loraplex.registry.adapters.routes import Route
from loraplex.registry.snapshot import ResolvedAdapter

from ..http.errors import ApiError
from ..observability.request_log import FinishedRequest
from ..quotas.quotas import Admission
from ..routing.tallies import Lane, Tallies
from ..state import State
from .generation import Generation
from .resolve import Served

VERSION_HEADER: Final = "x-loraplex-version"
INNOCENT: Final = frozenset({"invalid", "overloaded"})
"""Refusals of the engine that are the client's fault, or nobody's."""


class Started(Protocol):
    """A call, as far as it is looked at here."""

    @property
    def served(self) -> Served | None:
        """What it runs with, as soon as that is known."""

    async def start(self, admission: Admission) -> list[Generation]: ...


async def start_watched(state: State, tenant: str, call: Started, admission: Admission) -> list[Generation]:
    """`call.start`, so that its end counts for the version. Raises ApiError."""
    try:
        generations = await call.start(admission)
    except ApiError as error:
        lane = None if call.served is None else lane_of(tenant, call.served)
        if lane is not None and error.code == "adapter_unavailable":
            state.tallies.note(lane, True, None, 0.0, 0)
        raise
    if call.served is not None:
        _note_caller(state, tenant, call.served)
    lane = None if call.served is None else lane_of(tenant, call.served)
    if lane is not None:
        for generation in generations:
            generation.on_end = partial(note_end, state.tallies, lane)
    return generations


def _note_caller(state: State, tenant: str, served: Served) -> None:
    if served.asker is not None:
        for adapter, _ in served.adapters.values():
            state.callers.note(tenant, adapter.name, served.asker.caller)


def version_header(served: Served | None) -> dict[str, str]:
    """The versions that answer, as names to ask for just them; empty for the base alone."""
    names = [f"{adapter.name}@{adapter.version}" for adapter, _ in served.adapters.values()] if served else []
    return {VERSION_HEADER: ", ".join(names)} if names else {}


def lane_of(tenant: str, served: Served) -> Lane | None:
    """None where nobody compares: no alias has led there, or it has no candidates."""
    routed = served.routed
    if routed is None or routed.route is None or not routed.route.candidates:
        return None
    return _lane(tenant, routed, routed.route)


def note_end(tallies: Tallies, lane: Lane, finished: FinishedRequest, error: Exception | None) -> None:
    """`error`: what ended it, if something did."""
    innocent = finished.status == "error" and not is_fault(error)
    if not innocent:
        failed = finished.status == "error"
        first = (
            finished.duration if finished.status == "abort" and finished.first_token is None else finished.first_token
        )
        tallies.note(lane, failed, first, finished.duration, finished.completion_tokens)


def is_fault(error: Exception | None) -> bool:
    """Whether it speaks against the version: not what is wrong with the request, nor an engine that is away or full."""
    if isinstance(error, RequestRejected):
        return error.kind not in INNOCENT
    return isinstance(error, ApiError) and error.status == 500


def _lane(tenant: str, adapter: ResolvedAdapter, route: Route) -> Lane:
    since = next((one.since for one in route.candidates if one.version == adapter.version), None)
    return Lane(tenant, adapter.name, route.alias, adapter.version, since)
