"""Around every request, as plain ASGI so that disconnects get through: RequestContext with request id, security headers
and the access log; RejectWhileStopping while the server stops; HeadAsGet."""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import FORM, ErrorForm, PageOf, answer_of, crashed, overloaded, response_of

REQUEST_ID: Final = re.compile(rb"[\w.:/+=-]{1,128}", re.ASCII)
POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"content-security-policy", POLICY.encode()),
)
CALLER: Final = "loraplex.caller"
"""In the scope of a request that the server sends to itself: whose it is. Nothing from outside reaches the scope."""
PROBES: Final = frozenset({"/health", "/ready", "/metrics"})

access = logging.getLogger("loraplex.access")


class RequestContext:
    def __init__(
        self,
        app: ASGIApp,
        page_of_crash: Callable[[Scope], Response | None],
        log_probes: bool,
        on_answer: Callable[[Scope, int, float], None],
        error_forms: Mapping[str, ErrorForm],
    ) -> None:
        """`page_of_crash`: what a browser is told of a fault of ours; None: JSON. `on_answer` hears of each request
        its status, 0 where none was sent, and its seconds. `error_forms`: by the path that an API is at or below."""
        self._app = app
        self._page_of_crash = page_of_crash
        self._log_probes = log_probes
        self._on_answer = on_answer
        self._error_forms = error_forms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        form = self._error_form(path_of(scope))
        if form is not None:
            scope["state"][FORM] = form
        started, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode()), *SECURITY_HEADERS]
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:
            access.exception("a fault of ours, id=%s", request_id)
            if status:
                raise
            answer = self._page_of_crash(scope) or response_of(crashed(request_id), scope)
            await answer(scope, receive, send_with_headers)
        finally:
            seconds = time.perf_counter() - started
            line = (scope["method"], ascii(scope["path"]), status, seconds, request_id)
            access.log(self._level(scope), "%s %s %s %.3fs id=%s", *line)
            self._on_answer(scope, status, seconds)

    def _error_form(self, path: str) -> ErrorForm | None:
        forms = self._error_forms.items()
        return next((form for begin, form in forms if path == begin or path.startswith(f"{begin}/")), None)

    def _level(self, scope: Scope) -> int:
        """Probes and scrapes come every few seconds, whatever they are told: what is wrong has a line of its own. Lines
        of a batch are in its files."""
        quiet = CALLER in scope or (_is_probe(scope) and not self._log_probes)
        return logging.DEBUG if quiet else logging.INFO


class RejectWhileStopping:
    """503 and Retry-After for whatever comes while the server stops, but for probes. The connection ends with it."""

    def __init__(self, app: ASGIApp, stopping: asyncio.Event, page_of: PageOf) -> None:
        self._app = app
        self._stopping = stopping
        self._page_of = page_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._stopping.is_set() or _is_probe(scope):
            await self._app(scope, receive, send)
            return
        error = overloaded("The server is stopping. Try again in a moment.")
        error.headers["connection"] = "close"
        await answer_of(error, scope, self._page_of)(scope, receive, send)


class HeadAsGet:
    """HEAD is GET whose body is left out. What goes on without end ends with its head."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        done = False

        async def send_head(message: Message) -> None:
            nonlocal done
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                done = True

        async def receive_until_done() -> Message:
            return {"type": "http.disconnect"} if done else await receive()

        await self._app({**scope, "method": "GET"}, receive_until_done, send_head)


def _is_probe(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD") and path_of(scope) in PROBES


def path_of(scope: Scope) -> str:
    """Without what a proxy has put before it."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path


def _request_id(scope: Scope) -> str:
    """The client's own, when it is fit to be echoed; else a new one."""
    given = dict(scope["headers"]).get(b"x-request-id", b"")
    return given.decode() if REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
