"""Requests to models that were refused before they ran: noted beside those that ran, so that both are found by id."""

import time
from typing import Final

from starlette.types import Scope

from ..access.caller import Caller
from ..http.errors import ApiError, refusal_of
from .request_log import REFUSED, FinishedRequest, RequestLog

GENERATING: Final = frozenset(
    {
        *("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"),
        *("/v1/embeddings", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
        *("/api/chat", "/api/generate", "/api/embed", "/api/embeddings"),
    }
)
RAN: Final = "ran"
"""In a request's state, once the engine was asked: then it has a line of its own."""
MODEL: Final = "model"
"""In a request's state: what it asked for."""
MOST_LETTERS: Final = 300


def note_refusal(log: RequestLog, scope: Scope, status: int, seconds: float) -> None:
    """After an answer. `seconds`: how long it took."""
    path, noted = scope["path"].removeprefix(scope.get("root_path", "")), scope["state"]
    if status < 400 or path not in GENERATING or noted.get(RAN, False):
        return
    caller: Caller | None = noted.get("caller")
    error: ApiError | None = refusal_of(scope)
    log.add(
        FinishedRequest(
            at=time.time(),
            tenant="" if caller is None else caller.tenant,
            actor="" if caller is None else caller.actor,
            request_id=noted["request_id"],
            model=noted.get(MODEL, "")[:MOST_LETTERS],
            status=REFUSED,
            code=status,
            reason="" if error is None else error.message[:MOST_LETTERS],
            duration=seconds,
        )
    )
