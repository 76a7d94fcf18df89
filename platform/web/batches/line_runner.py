"""LineRunner: a line is asked as any other request, again where the server had no room, and becomes a record."""

import asyncio
import hashlib
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import msgspec
from starlette.types import ASGIApp

from loraplex.engine.ipc.client import RequestRejected
from loraplex.registry.batches.journal import Record, Used
from loraplex.registry.database.tables import utc_now
from loraplex.registry.usage.ledger import Account, AccountHour, OpenEntry

from ..access.caller import Caller
from ..http.errors import ApiError
from ..inference.inference import Inference
from .answers import BatchError
from .asking import Answered, ask
from .gate import Gate
from .lines import Line

MOST_ATTEMPTS: Final = 8
"""Of a line that the engine breaks off, or cannot take; the last refusal is then its answer."""
LONGEST_WAIT: Final = 30.0
LOOK_SECONDS: Final = 0.2
NEVER: Final = "request_too_large"
"""Code of a 429 that says the same for ever."""


class LineBook:
    """The books of one line: what it used is kept until its record is on the disk."""

    def __init__(self) -> None:
        self._account: Account | None = None
        self._counts: dict[str, Any] | None = None

    def open(self, account: Account, reserved_tokens: int) -> OpenEntry:
        self._account, now = account, utc_now()
        return OpenEntry(0, AccountHour(account, now.date().isoformat(), now.hour), reserved_tokens)

    def settle(
        self, entry: OpenEntry, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int, error: bool
    ) -> None:
        self._counts = {
            "prompt_tokens": prompt_tokens,
            "cached_tokens": cached_tokens,
            "completion_tokens": completion_tokens,
            "failed": error,
        }

    def used(self, reasoning_tokens: int) -> Used | None:
        """None: it was refused before it counted."""
        if self._account is None or self._counts is None:
            return None
        account, now = self._account, utc_now()
        return Used(
            adapter_digest=account.adapter_digest,
            adapter_name=account.adapter_name,
            day=now.date().isoformat(),
            hour=now.hour,
            reasoning_tokens=reasoning_tokens,
            **self._counts,
        )


class LineRunner:
    def __init__(self, app: ASGIApp, inference: Inference, gate: Gate) -> None:
        self._app, self._inference, self._gate = app, inference, gate

    async def run(self, line: Line, caller_of: Callable[[], Caller], batch: str = "") -> Record:
        """`caller_of`: on whose behalf, asked before each attempt. `batch`: its id, for lines that may run again when
        the server dies: what they leave behind is then replaced."""
        name = _name(batch, line) if batch else ""
        request_id = f"batch_req_{uuid.uuid4().hex}"
        if line.problem is not None:
            return Record(line.number, False, None, refused_line(request_id, line, line.problem))
        attempt = 0
        while True:
            await self._until_there_is_room(caller_of().tenant)
            book = LineBook()
            async with self._gate.inside(caller_of().tenant):
                caller = replace(caller_of(), books=book, line=name)
                answered = await ask(self._app, caller, line.url, line.body, request_id)
            wait = _wait(answered, attempt)
            if wait is None:
                break
            attempt += answered.status != 429
            await asyncio.sleep(wait)
        used = book.used(_reasoning_tokens(answered))
        return Record(line.number, answered.status == 200, used, _answered_line(request_id, line, answered))

    async def _until_there_is_room(self, tenant: str) -> None:
        inference = self._inference
        while inference.engine.obstacle() is not None or not self._has_room(tenant):
            await asyncio.sleep(LOOK_SECONDS)

    def _has_room(self, tenant: str) -> bool:
        try:
            self._inference.requests.check_room()
            self._inference.engine.check_room(tenant)
        except (ApiError, RequestRejected):
            return False
        return True


def _name(batch: str, line: Line) -> str:
    return hashlib.sha256(f"{batch} {line.number}".encode()).hexdigest()[:32]


def refused_line(request_id: str, line: Line, error: BatchError) -> msgspec.Raw:
    """For the error file, of a line that was never asked."""
    told = {"code": error.code, "message": error.message, "param": error.param}
    return _encoded(line, {"id": request_id, "custom_id": line.custom_id, "response": None, "error": told})


def _answered_line(request_id: str, line: Line, answered: Answered) -> msgspec.Raw:
    body = answered.body
    if b"\n" in body:
        body = msgspec.json.encode(msgspec.json.decode(body))
    response = {"status_code": answered.status, "request_id": request_id, "body": msgspec.Raw(body)}
    members = {"id": request_id, "custom_id": line.custom_id, "response": response, "error": None}
    return msgspec.Raw(msgspec.json.encode(members)) if answered.status == 200 else _encoded(line, members)


def _encoded(line: Line, members: dict[str, Any]) -> msgspec.Raw:
    """A line of the error file also says which line of the input it is about."""
    return msgspec.Raw(msgspec.json.encode({**members, "line": line.number}))


def _wait(answered: Answered, attempt: int) -> float | None:
    """Seconds until it is asked again; None: what it was answered holds."""
    if answered.status == 429 and msgspec.json.decode(answered.body)["error"].get("code") != NEVER:
        return min(LONGEST_WAIT, float(answered.headers.get("retry-after", "1")))
    if answered.status == 503 and attempt + 1 < MOST_ATTEMPTS:
        return min(LONGEST_WAIT, LOOK_SECONDS * float(2**attempt))
    return None


def _reasoning_tokens(answered: Answered) -> int:
    usage = msgspec.json.decode(answered.body).get("usage") if answered.status == 200 else None
    details = (usage or {}).get("completion_tokens_details") or (usage or {}).get("output_tokens_details") or {}
    return int(details.get("reasoning_tokens", 0))
