"""The last requests as the requests page shows them: figures and names, never a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from loraplex.registry.snapshot import Snapshots

from ...access.caller import Caller
from ...access.permissions import Permission
from ...observability.metrics import Metrics
from ...observability.request_log import ABORT, ERROR, REFUSED, FinishedRequest, Phases
from ...state import State
from ...units import duration_words
from ..addresses import local_address

NONE: Final = "–"
TONES: Final = {"stop": "good", "length": "good", ABORT: "warn", ERROR: "bad", REFUSED: "bad"}
GROUPS: Final = {"": "All", "done": "Completed", ABORT: "Aborted", ERROR: "Failed", REFUSED: "Refused"}
"""What the page can be narrowed to; completed are those that ended by themselves."""
ORDERS: Final = ("", "duration")
NOT_DONE: Final = frozenset({ABORT, ERROR, REFUSED})
Names = Mapping[str, str]
"""Actor -> what people call it."""


@dataclass(frozen=True, slots=True)
class RequestRow:
    """`page`: of its adapter, empty for the base and for what never ran. `phases`: name and words of each."""

    at_iso: str
    request_id: str
    tenant: str
    key: str
    model: str
    version: str
    page: str
    status: str
    reason: str
    tone: str
    prompt_tokens: str
    cached: str
    completion_tokens: str
    first_token: str
    duration: str
    phases: Sequence[tuple[str, str]]
    rate: str


def scope_of(caller: Caller) -> str | None:
    """Whose requests are shown; None: everybody's."""
    return None if caller.oversees else caller.tenant


def matching_requests(state: State, caller: Caller, search: str, group: str, order: str) -> list[FinishedRequest]:
    """Newest or slowest first: whose id or key contains `search`, or whose model begins with it."""
    wanted, names = search.strip().lower(), key_names(state.snapshots, caller)
    found = state.metrics.log.of(scope_of(caller))
    if group:
        found = [one for one in found if _group(one) == group]
    if wanted:
        found = [one for one in found if _matches(one, wanted, names)]
    return sorted(found, key=lambda one: one.duration, reverse=True) if order == "duration" else list(found)


def kept_since(metrics: Metrics, caller: Caller) -> datetime:
    """Requests that ended before are not known: from before the server's start, or newer ones took their places."""
    return datetime.fromtimestamp(metrics.log.kept_since(scope_of(caller)), UTC)


def request_rows(state: State, caller: Caller, requests: Sequence[FinishedRequest]) -> list[RequestRow]:
    names = key_names(state.snapshots, caller)
    return [_row(one, state.settings.base_name, caller, names) for one in requests]


def key_names(snapshots: Snapshots, caller: Caller) -> Names:
    """Labels of keys, for those who may see the keys."""
    if not caller.allows(Permission.ADMIN):
        return {}
    return {f"key:{prefix}": key.name for prefix, (key, _) in snapshots.current.keys.keys.items()}


def _group(request: FinishedRequest) -> str:
    return request.status if request.status in NOT_DONE else "done"


def _matches(request: FinishedRequest, wanted: str, names: Names) -> bool:
    by = names.get(request.actor, "").lower()
    return wanted in request.request_id.lower() or request.model.startswith(wanted) or wanted in f"{by} {request.actor}"


def _row(request: FinishedRequest, base: str, caller: Caller, names: Names) -> RequestRow:
    ran_alone = request.status != REFUSED and request.model != base and "+" not in request.model
    elsewhere = "" if request.tenant == caller.own_tenant else request.tenant
    return RequestRow(
        at_iso=datetime.fromtimestamp(request.at, UTC).isoformat(timespec="milliseconds"),
        request_id=request.request_id,
        tenant=request.tenant,
        key=names.get(request.actor, request.actor) or "no valid key",
        model=request.model or NONE,
        version=f"version {request.version}" if request.version else "",
        page=local_address(f"/adapters/{request.model}", elsewhere) if ran_alone else "",
        status=str(request.code) if request.status == REFUSED else request.status,
        reason=request.reason,
        tone=TONES.get(request.status, ""),
        prompt_tokens=f"{request.prompt_tokens:,}",
        cached=f"{request.cached_tokens:,} from cache" if request.cached_tokens else "",
        completion_tokens=f"{request.completion_tokens:,}",
        first_token=NONE if request.first_token is None else duration_words(request.first_token),
        duration=duration_words(request.duration),
        phases=_phases(request.phases),
        rate=_rate(request),
    )


def _phases(phases: Phases | None) -> list[tuple[str, str]]:
    if phases is None:
        return []
    times = {"queue": phases.queue, "load": phases.load, "prefill": phases.prefill, "decode": phases.decode}
    return [(name, duration_words(seconds)) for name, seconds in times.items()]


def _rate(request: FinishedRequest) -> str:
    """Tokens per second after the first token."""
    if request.first_token is None or request.completion_tokens < 2 or request.duration <= request.first_token:
        return NONE
    return f"{(request.completion_tokens - 1) / (request.duration - request.first_token):,.0f} tokens/s"
