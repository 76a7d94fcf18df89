"""Who asks, and whether they may do what the route demands (`permissions.py`)."""

import asyncio
import hmac
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from fastapi.routing import iter_route_contexts

from loraplex.registry.access.scopes import ADMIN
from loraplex.registry.database.database import AWAY
from loraplex.registry.database.tables import DEFAULT_TENANT
from loraplex.registry.errors import InvalidKey

from ..access.caller import Caller
from ..access.permissions import (
    MONITORING,
    PUBLIC,
    SAFE_METHODS,
    Permission,
    access_of,
    permissions_of_key,
    permissions_of_user,
)
from ..access.sessions import COOKIE, Session
from ..http.database_errors import fault_of
from ..http.errors import ApiError, forbidden, not_found, overloaded, unauthorized
from ..http.fair_executor import asking
from ..http.middleware import CALLER
from ..http.open_connections import tell_known
from ..observability.tracing import note_parent
from ..settings.loopback import is_loopback
from ..settings.running_server import ACTOR

if TYPE_CHECKING:
    from loraplex.registry.registry import Registry

    from ..access.sessions import Sessions
    from ..settings.settings import Settings
    from ..state import State

TENANT: Final = "tenant"
"""Name in the query of whose things are meant."""
ANYONE: Final = Caller(DEFAULT_TENANT, "user:anyone", frozenset({Permission.INFERENCE}))
"""Without a key, where none is needed."""
LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})
MAX_SNAPSHOT_AGE: Final = 60.0
"""Seconds for which keys are still believed while the database is unavailable."""


def access_table(app: FastAPI) -> dict[int, str]:
    """id of a route -> what it demands. A route that is reached by two paths with different demands is for admins."""
    table: dict[int, str] = {}
    for context in iter_route_contexts(app.routes):
        safe = SAFE_METHODS.issuperset(getattr(context, "methods", None) or {"POST"})
        route, needed = id(context.original_route), access_of(context.path or "", safe)
        table[route] = needed if table.get(route, needed) == needed else Permission.ADMIN
    return table


async def guard(request: Request) -> None:
    """Dependency of the whole app: lets the request through with `request.state.caller` set, or raises ApiError, whose
    page knows the caller too."""
    state: State = request.app.state.loraplex
    needed = request.app.state.access.get(id(request.scope["route"]), Permission.ADMIN)
    if needed == PUBLIC or (needed == MONITORING and _is_local(request, state.settings)):
        return
    caller = request.state.caller = await _caller(request, state, needed)
    tell_known(request.scope)
    asking.set(caller.tenant)
    note_parent(request.headers)
    if not caller.allows(Permission.OPERATE if needed == MONITORING else needed):
        raise _lacking(caller, needed, request.scope["route"].path)
    if caller.only is not None and needed != Permission.INFERENCE:
        _check_adapter(request, caller.only)
    request.state.caller = _in_named_tenant(caller, request.query_params.get(TENANT, ""), state.registry)


async def _caller(request: Request, state: "State", needed: str) -> Caller:
    """As `identify`. With no_api_key, programs of this machine may use models with no key and with any."""
    try:
        return await identify(request, state)
    except ApiError as error:
        if error.status != 401 or needed != Permission.INFERENCE or not _is_open_to(request, state.settings):
            raise
        return ANYONE


async def may_use_models(request: Request) -> bool:
    """Whether whoever asks may, by a credential or without one."""
    try:
        caller = await _caller(request, request.app.state.loraplex, Permission.INFERENCE)
    except ApiError as error:
        if error.status != 401:
            raise
        return False
    return caller.allows(Permission.INFERENCE)


def caller_of_key(metadata: Mapping[str, str], state: "State") -> Caller:
    """As `guard` finds it, of a call that is none of HTTP: by the key in the metadata. Raises ApiError."""
    try:
        token = token_of(metadata)
        if token is None:
            raise unauthorized("No API key was sent. Send one in the metadata: authorization: Bearer YOUR_KEY")
        return _by_key(token, state)
    except ApiError as error:
        if error.status == 401 and state.settings.no_api_key:
            return ANYONE
        raise


def _is_open_to(request: Request, settings: "Settings") -> bool:
    """Not to pages of elsewhere: a browser names them, and knows this machine by their host."""
    host = request.url.hostname or ""
    origin = request.headers.get("origin")
    is_own_page = origin is None or origin.partition("://")[2] == request.headers.get("host")
    return settings.no_api_key and is_loopback(client_address(request)) and is_loopback(host) and is_own_page


def _in_named_tenant(caller: Caller, tenant: str, registry: "Registry") -> Caller:
    """Whose things are meant: the caller's own, or for the operator those of the tenant that the query names. ApiError
    404 for all others alike."""
    if tenant in ("", caller.tenant):
        return caller
    if caller.allows(Permission.OPERATE) and tenant in registry.snapshots.current.tenants:
        return caller.acting_for(tenant)
    raise not_found(f"There is no tenant {tenant[:80]!a}.", TENANT, "tenant_not_found")


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


def client_address(request: Request) -> str:
    """Whom the request comes from, as a proxy on this machine tells; empty where nobody knows."""
    return request.client.host if request.client else ""


def check_origin(request: Request) -> None:
    """Refuse what another site made the browser send."""
    origin = request.headers.get("origin", "")
    if origin.partition("://")[2] != request.headers.get("host"):
        raise forbidden("This request does not come from the dashboard's pages (Origin header).")


async def identify(request: Request, state: "State") -> Caller:
    """Whose credential it has. Raises ApiError."""
    known: Caller | None = request.scope.get(CALLER)
    if known is not None:
        return known
    token = token_of(request.headers)
    if token is not None:
        return _by_key(token, state)
    if COOKIE in request.cookies:
        return await _by_session(request, state.sessions)
    raise unauthorized("No API key was sent. Send one in the header: authorization: Bearer YOUR_KEY")


def token_of(headers: Mapping[str, str]) -> str | None:
    """The key of a request; None: it has none. Anthropic's clients send x-api-key."""
    header, own = headers.get("authorization"), headers.get("x-api-key")
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    if own is not None:
        return own.strip()
    if header is not None:
        raise unauthorized("The authorization header must be: Bearer YOUR_KEY")
    return None


def _by_key(token: str, state: "State") -> Caller:
    if hmac.compare_digest(token.encode(), state.local_key.encode()):
        return Caller(DEFAULT_TENANT, ACTOR, permissions_of_key(frozenset({ADMIN}), DEFAULT_TENANT))
    if state.registry.snapshots.age > MAX_SNAPSHOT_AGE:
        obstacle = state.database_watch.obstacle() or "the database is unavailable"
        raise overloaded(f"Keys cannot be checked: {obstacle}. Try again in a moment.", 5)
    try:
        key = state.registry.snapshots.current.authenticate(token)
    except InvalidKey as error:
        raise unauthorized(str(error)) from None
    state.used_keys.note(key.prefix)
    permissions = permissions_of_key(key.scopes, key.tenant)
    return Caller(key.tenant, f"key:{key.prefix}", permissions, only=key.adapters, quota=key.quota)


async def _by_session(request: Request, sessions: "Sessions") -> Caller:
    try:
        session = await asyncio.to_thread(sessions.read, request.cookies[COOKIE])
    except AWAY as error:
        raise overloaded(f"Logins cannot be checked: {fault_of(error)}. Try again in a moment.", 5) from None
    if session is None:
        raise unauthorized("Your session has ended. Log in again.")
    if request.method not in SAFE_METHODS:
        check_origin(request)
        await _check_csrf(request, session)
    permissions = permissions_of_user(session.role, session.tenant)
    return Caller(session.tenant, f"user:{session.user}", permissions, session)


def _check_adapter(request: Request, only: Collection[str]) -> None:
    """For a key of some adapters, the others do not exist, and there are no pages. Inference finds out by itself."""
    if not request.scope["route"].path.startswith("/api/"):
        raise forbidden("This key is limited to some adapters and cannot open pages.")
    reference: str = request.path_params.get("name") or request.path_params.get("reference") or ""
    name = reference.partition("@")[0]
    if name and name not in only:
        raise not_found(f"There is no adapter '{name}'.", "name", "adapter_not_found")


def _lacking(caller: Caller, needed: str, path: str) -> ApiError:
    if needed in (Permission.OPERATE, MONITORING):
        return forbidden("Only the operator can do that: an admin of the tenant 'default'.")
    if caller.session is not None:
        return forbidden(f"Your role '{caller.session.role}' does not allow that. Ask an admin of your tenant.")
    if path == "/":
        return forbidden("This is the dashboard, which needs a login. The API is under /v1, see /v1/models and /docs.")
    scope = "adapters" if needed == Permission.READ else needed
    return forbidden(f"This key lacks the scope '{scope}'. Use a key that has it.")


async def _check_csrf(request: Request, session: Session) -> None:
    sent = request.headers.get("x-csrf-token")
    if sent is None and request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        sent = (await form_fields(request)).get("csrf_token")
    if not hmac.compare_digest((sent or "").encode(), session.csrf_token.encode()):
        raise forbidden("The CSRF token is missing or wrong. Reload the page and try again.")


def _is_local(request: Request, settings: "Settings") -> bool:
    return settings.public_metrics and client_address(request) in LOOPBACK
