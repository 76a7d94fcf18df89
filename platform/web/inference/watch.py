"""A request that an alias has led to a version: its end is noted for the route, and its answer names the version."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from loraplex.engine.ipc.client import RequestRejected
from loraplex.registry.adapters.routes import Route
from loraplex.registry.snapshot import ResolvedAdapter

from ..http.errors import ApiError
from ..observability.request_log import FinishedRequest
from ..routing.callers import RecentCallers
from ..routing.tallies import Lane, Tallies
from .generation import OnEnd
from .resolve import Served

VERSION_HEADER: Final = "x-loraplex-version"
INNOCENT: Final = frozenset({"invalid", "overloaded"})
"""Refusals of the engine that are the client's fault, or nobody's."""


@contextmanager
def watched(tallies: Tallies, callers: RecentCallers, tenant: str, served: Served) -> Iterator[OnEnd | None]:
    """Around the start of a request, so that it counts for the version. Answers what to call at its end."""
    lane = lane_of(tenant, served)
    try:
        yield None if lane is None else partial(note_end, tallies, lane)
    except ApiError as error:
        if lane is not None and error.code == "adapter_unavailable":
            tallies.note(lane, True, None, 0.0, 0)
        raise
    if served.asker is not None:
        for adapter, _ in served.adapters.values():
            callers.note(tenant, adapter.name, served.asker.caller)


def version_header(served: Served) -> dict[str, str]:
    """The versions that answer, as names to ask for just them; empty for the base alone."""
    names = [f"{adapter.name}@{adapter.version}" for adapter, _ in served.adapters.values()]
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
