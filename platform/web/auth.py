"""Who asks, and whether they may. Fails closed: a route that is named nowhere here is for administrators only."""

import asyncio
import hmac
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from fastapi.routing import iter_route_contexts

from loraplex.registry.errors import InvalidKey
from loraplex.registry.keys import ADAPTERS, ADMIN, INFERENCE

from .errors import ApiError, forbidden, overloaded, unauthorized
from .sessions import COOKIE, Session
from .state import State

PUBLIC: Final = "public"
MONITORING: Final = "monitoring"
"""Administrators, and programs on this machine when `public_metrics` is set."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})
MAX_SNAPSHOT_AGE: Final = 60.0
"""Seconds for which keys are still believed while the database is away."""

PUBLIC_ROUTES: Final = frozenset({"/health", "/ready", "/version", "/openapi.json", "/login"})
INFERENCE_ROUTES: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{name:path}", "/tokenize", "/detokenize"}
)
ADAPTER_PREFIX: Final = "/api/v1/adapters"


@dataclass(frozen=True, slots=True)
class Caller:
    """`actor` is `key:<prefix>` or `user:<name>`, as audit rows name it."""

    tenant: str
    actor: str
    scopes: frozenset[str]
    session: Session | None = None

    def allows(self, scope: str) -> bool:
        return scope in self.scopes or ADMIN in self.scopes


def access_of(path: str) -> str:
    """What a route demands, by its whole path template: `public`, `monitoring` or a scope."""
    if path in PUBLIC_ROUTES:
        return PUBLIC
    if path == "/metrics":
        return MONITORING
    if path in INFERENCE_ROUTES:
        return INFERENCE
    return ADAPTERS if path == ADAPTER_PREFIX or path.startswith(ADAPTER_PREFIX + "/") else ADMIN


def access_table(app: FastAPI) -> dict[int, str]:
    """id of a route -> what it demands. A route that is reached by two paths with different demands is for admins."""
    table: dict[int, str] = {}
    for context in iter_route_contexts(app.routes):
        route, needed = id(context.original_route), access_of(context.path or "")
        table[route] = needed if table.get(route, needed) == needed else ADMIN
    return table


async def guard(request: Request) -> None:
    """Dependency of the whole app: lets the request through with `request.state.caller` set, or raises ApiError."""
    state: State = request.app.state.loraplex
    needed = request.app.state.access.get(id(request.scope["route"]), ADMIN)
    if needed == PUBLIC or (needed == MONITORING and _is_local(request, state)):
        return
    caller = await _identify(request, state)
    scope = ADMIN if needed == MONITORING else needed
    if not caller.allows(scope):
        raise forbidden(f"This key may not do that: it lacks the scope '{scope}'. Use a key that has it.")
    request.state.caller = caller


def caller_of(request: Request) -> Caller:
    """Who the guard let in. Only for routes that are not public."""
    caller: Caller = request.state.caller
    return caller


async def form_fields(request: Request) -> dict[str, str]:
    """The fields of an HTML form, the first value of each."""
    try:
        text = (await request.body()).decode()
    except UnicodeDecodeError:
        raise ApiError(400, "The form is not UTF-8.") from None
    return {name: values[0] for name, values in parse_qs(text, keep_blank_values=True, max_num_fields=100).items()}


def check_origin(request: Request) -> None:
    """Refuse what another site made the browser send."""
    origin = request.headers.get("origin", "")
    if origin.partition("://")[2] != request.headers.get("host"):
        raise forbidden("This request does not come from the dashboard's own pages (Origin header).")


async def _identify(request: Request, state: State) -> Caller:
    header = request.headers.get("authorization")
    if header is not None:
        return _by_key(header, state)
    if COOKIE in request.cookies:
        return await _by_session(request, state)
    raise unauthorized("No API key was sent. Send one in the header: authorization: Bearer YOUR_KEY")


def _by_key(header: str, state: State) -> Caller:
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise unauthorized("The authorization header must be: Bearer YOUR_KEY")
    if state.registry.snapshots.age > MAX_SNAPSHOT_AGE:
        raise overloaded("Keys cannot be checked: the database is away. Try again in a moment.", 5)
    try:
        key = state.registry.snapshots.current.authenticate(token.strip())
    except InvalidKey as error:
        raise unauthorized(str(error)) from None
    state.used_keys.note(key.prefix)
    return Caller(key.tenant, f"key:{key.prefix}", key.scopes)


async def _by_session(request: Request, state: State) -> Caller:
    session = await asyncio.to_thread(state.sessions.read, request.cookies[COOKIE])
    if session is None:
        raise unauthorized("The session has ended. Log in again.")
    if request.method not in SAFE_METHODS:
        check_origin(request)
        await _check_csrf(request, session)
    return Caller(session.tenant, f"user:{session.user}", frozenset({ADMIN}), session)


async def _check_csrf(request: Request, session: Session) -> None:
    sent = request.headers.get("x-csrf-token")
    if sent is None and request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        sent = (await form_fields(request)).get("csrf_token")
    if not hmac.compare_digest((sent or "").encode(), session.csrf_token.encode()):
        raise forbidden("The CSRF token is missing or wrong. Reload the page and try again.")


def _is_local(request: Request, state: State) -> bool:
    return state.settings.public_metrics and request.client is not None and request.client.host in LOOPBACK
