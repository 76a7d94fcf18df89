"""The last requests as the requests page shows them: figures and names, never a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from ..metrics import FinishedRequest
from ..state import State
from ..units import duration_words

NONE: Final = "–"
TONES: Final = {"stop": "good", "length": "good", "abort": "warn", "error": "bad"}
GROUPS: Final = {"": "All", "done": "Completed", "abort": "Aborted", "error": "Failed"}
"""What the page can be narrowed to; completed are those that ended by themselves."""


@dataclass(frozen=True, slots=True)
class RequestRow:
    at_iso: str
    request_id: str
    model: str
    is_adapter: bool
    status: str
    tone: str
    prompt_tokens: str
    cached: str
    completion_tokens: str
    first_token: str
    duration: str
    rate: str


def matching_requests(state: State, tenant: str, search: str, group: str) -> list[FinishedRequest]:
    """Newest first: whose id contains `search`, or whose model begins with it."""
    wanted = search.strip().lower()
    mine = [one for one in reversed(list(state.metrics.recent)) if one.tenant == tenant]
    if group:
        mine = [one for one in mine if _is_in(one, group)]
    if not wanted:
        return mine
    return [one for one in mine if wanted in one.request_id.lower() or one.model.startswith(wanted)]


def kept_since(state: State) -> datetime:
    """Requests that ended before are not known: from before the server's start, or newer ones took their places."""
    recent = state.metrics.recent
    full = len(recent) == recent.maxlen
    return datetime.fromtimestamp(recent[0].at if full else state.metrics.since, UTC)


def request_rows(state: State, requests: Sequence[FinishedRequest]) -> list[RequestRow]:
    return [_row(one, state.settings.base_name) for one in requests]


def _is_in(request: FinishedRequest, group: str) -> bool:
    return (request.status if request.status in ("abort", "error") else "done") == group


def _row(request: FinishedRequest, base: str) -> RequestRow:
    return RequestRow(
        at_iso=datetime.fromtimestamp(request.at, UTC).isoformat(timespec="milliseconds"),
        request_id=request.request_id,
        model=request.model,
        is_adapter=request.model != base,
        status=request.status,
        tone=TONES.get(request.status, ""),
        prompt_tokens=f"{request.prompt_tokens:,}",
        cached=f"{request.cached_tokens:,} from cache" if request.cached_tokens else "",
        completion_tokens=f"{request.completion_tokens:,}",
        first_token=NONE if request.first_token is None else duration_words(request.first_token),
        duration=duration_words(request.duration),
        rate=_rate(request),
    )


def _rate(request: FinishedRequest) -> str:
    """Tokens per second after the first token."""
    if request.first_token is None or request.completion_tokens < 2 or request.duration <= request.first_token:
        return NONE
    return f"{(request.completion_tokens - 1) / (request.duration - request.first_token):,.0f} tokens/s"
