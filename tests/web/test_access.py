"""Who may call what: every route of the app with every kind of credential. A route without a row here fails."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fastapi import APIRouter, FastAPI
from fastapi.routing import iter_route_contexts

from loraplex.web.access.login_throttle import MOST_AT_AN_ACCOUNT
from loraplex.web.access.sessions import COOKIE
from loraplex.web.app import create_app
from loraplex.web.endpoints.authentication import access_table
from loraplex.web.state import State

from .conftest import ADMIN_PASSWORD, KEY

PUBLIC, INFERENCE, READ, ADAPTERS, ADMIN, OPERATE = "public", "inference", "read", "adapters", "admin", "operate"
API = {
    "GET /health": PUBLIC,
    "GET /ping": PUBLIC,
    "POST /ping": PUBLIC,
    "GET /docs": PUBLIC,
    "GET /load": INFERENCE,
    "GET /tokenizer_info": INFERENCE,
    "GET /ready": PUBLIC,
    "GET /version": PUBLIC,
    "GET /openapi.json": PUBLIC,
    "GET /metrics": OPERATE,
    "POST /v1/chat/completions": INFERENCE,
    "POST /v1/completions": INFERENCE,
    "POST /v1/responses": INFERENCE,
    "POST /v1/responses/input_tokens": INFERENCE,
    "GET /v1/responses/{response_id}": INFERENCE,
    "DELETE /v1/responses/{response_id}": INFERENCE,
    "GET /v1/responses/{response_id}/input_items": INFERENCE,
    "POST /v1/responses/{response_id}/cancel": INFERENCE,
    "POST /v1/messages": INFERENCE,
    "POST /v1/messages/count_tokens": INFERENCE,
    "POST /v1/embeddings": INFERENCE,
    "POST /pooling": INFERENCE,
    **dict.fromkeys(("POST /api/chat", "POST /api/generate", "POST /api/show"), INFERENCE),
    **dict.fromkeys(("GET /api/tags", "GET /api/ps", "GET /api/version"), INFERENCE),
    **dict.fromkeys(
        (f"POST /api/{word}" for word in ("embed", "embeddings", "pull", "push", "create", "copy")), INFERENCE
    ),
    "DELETE /api/delete": INFERENCE,
    "POST /classify": INFERENCE,
    "POST /score": INFERENCE,
    "POST /v1/score": INFERENCE,
    "POST /rerank": INFERENCE,
    "POST /v1/rerank": INFERENCE,
    "POST /v2/rerank": INFERENCE,
    "GET /v1/models": INFERENCE,
    "GET /v1/models/{name:path}": INFERENCE,
    "POST /v1/files": INFERENCE,
    "GET /v1/files": INFERENCE,
    "GET /v1/files/{file_id}": INFERENCE,
    "DELETE /v1/files/{file_id}": INFERENCE,
    "GET /v1/files/{file_id}/content": INFERENCE,
    "POST /v1/batches": INFERENCE,
    "GET /v1/batches": INFERENCE,
    "GET /v1/batches/{batch_id}": INFERENCE,
    "POST /v1/batches/{batch_id}/cancel": INFERENCE,
    "POST /tokenize": INFERENCE,
    "POST /detokenize": INFERENCE,
    "GET /api/v1/adapters": READ,
    "GET /api/v1/adapters/{name}": READ,
    "GET /api/v1/adapters/{reference}/report": READ,
    "POST /api/v1/adapters/{name}/versions": ADAPTERS,
    "PATCH /api/v1/adapters/{reference}": ADAPTERS,
    "DELETE /api/v1/adapters/{reference}": ADAPTERS,
    "GET /api/v1/adapters/{name}/aliases": READ,
    "GET /api/v1/adapters/{name}/aliases/{alias}": READ,
    "POST /api/v1/adapters/{name}/aliases/{alias}/promote": ADAPTERS,
    "POST /api/v1/adapters/{name}/aliases/{alias}/rollback": ADAPTERS,
    "PUT /api/v1/adapters/{name}/aliases/{alias}/guard": ADAPTERS,
    "DELETE /api/v1/adapters/{name}/aliases/{alias}/guard": ADAPTERS,
    "PUT /api/v1/adapters/{name}/aliases/{alias}/shadow": ADAPTERS,
    "DELETE /api/v1/adapters/{name}/aliases/{alias}/shadow": ADAPTERS,
    "PUT /api/v1/adapters/{name}/aliases/{alias}": ADAPTERS,
    "DELETE /api/v1/adapters/{name}/aliases/{alias}": ADAPTERS,
    "POST /api/v1/adapters/{reference}/load": ADAPTERS,
    "POST /api/v1/adapters/{name}/undo": ADAPTERS,
    "POST /api/v1/adapters/{reference}/evict": ADAPTERS,
    "PUT /api/v1/adapters/{name}/files/{filename}": ADAPTERS,
    "GET /api/v1/adapters/{name}/files/{filename}": READ,
    "GET /api/v1/adapters/{reference}/certificate": READ,
    "POST /api/v1/adapters/{reference}/certify": ADAPTERS,
    "GET /api/v1/adapters/{name}/prompts": READ,
    "PUT /api/v1/adapters/{name}/prompts": ADAPTERS,
    "DELETE /api/v1/adapters/{name}/prompts": ADAPTERS,
    "GET /api/v1/adapters/{reference}/profile": READ,
    "PUT /api/v1/adapters/{reference}/profile": ADAPTERS,
    "DELETE /api/v1/adapters/{reference}/profile": ADAPTERS,
    "GET /api/v1/engine/certificate": READ,
    "POST /api/v1/engine/certify": OPERATE,
    "POST /v1/load_lora_adapter": OPERATE,
    "POST /v1/unload_lora_adapter": OPERATE,
    "POST /load_lora_adapter": OPERATE,
    "POST /unload_lora_adapter": OPERATE,
    "GET /api/v1/engine": OPERATE,
    "GET /api/v1/settings": OPERATE,
    "GET /api/v1/keys": ADMIN,
    "POST /api/v1/keys": ADMIN,
    "GET /api/v1/keys/{prefix}": ADMIN,
    "PATCH /api/v1/keys/{prefix}": ADMIN,
    "DELETE /api/v1/keys/{prefix}": ADMIN,
    "GET /api/v1/usage": READ,
    "GET /api/v1/audit": ADMIN,
    "GET /api/v1/audit/export": ADMIN,
    "GET /api/v1/openapi.json": READ,
    "GET /api/v1/me": READ,
    "PUT /api/v1/me/password": READ,
    "GET /api/v1/users": ADMIN,
    "POST /api/v1/users": ADMIN,
    "PATCH /api/v1/users/{user}": ADMIN,
    "DELETE /api/v1/users/{user}": ADMIN,
    "GET /api/v1/tenants": OPERATE,
    "POST /api/v1/tenants": OPERATE,
    "GET /api/v1/tenants/{tenant}": OPERATE,
    "PATCH /api/v1/tenants/{tenant}": OPERATE,
}
PAGES = {
    "GET /login": PUBLIC,
    "POST /login": PUBLIC,
    "POST /logout": READ,
    "GET /account": READ,
    "POST /account/password": READ,
    "GET /": READ,
    "GET /dashboard/live": READ,
    "GET /dashboard/state": READ,
    "GET /adapters": READ,
    "GET /upload": ADAPTERS,
    "GET /adapters/{name}": READ,
    "GET /adapters/{name}/traffic": READ,
    "GET /adapters/{name}/states": READ,
    "GET /adapters/{name}/diff": READ,
    "GET /adapters/{name}/tensors": READ,
    "POST /certify": OPERATE,
    "POST /upload/fetch": OPERATE,
    "POST /adapters/{name}/check": ADAPTERS,
    "POST /adapters/{name}/versions": ADAPTERS,
    "POST /adapters/{name}/delete": ADAPTERS,
    "POST /adapters/{name}/undo": ADAPTERS,
    "GET /adapters/{reference}/profile": READ,
    "POST /adapters/{reference}/profile": ADAPTERS,
    "POST /adapters/{reference}/profile/preview": ADAPTERS,
    "GET /adapters/{name}/aliases": READ,
    "POST /adapters/{name}/aliases": ADAPTERS,
    "POST /adapters/{name}/aliases/{alias}/{action}": ADAPTERS,
    "POST /adapters/{reference}/{action}": ADAPTERS,
    "GET /cache": READ,
    "POST /cache/{reference}/{action}": ADAPTERS,
    "GET /cache/what-if": OPERATE,
    "GET /playground": ADAPTERS,
    "GET /requests": READ,
    "GET /batches": READ,
    "POST /batches/{batch_id}/cancel": ADAPTERS,
    "GET /usage": READ,
    "GET /usage/points": READ,
    "GET /usage/csv": READ,
    "GET /keys": ADMIN,
    "POST /keys": ADMIN,
    "GET /keys/{prefix}": ADMIN,
    "POST /keys/{prefix}": ADMIN,
    "POST /keys/{prefix}/revoke": ADMIN,
    "GET /users": ADMIN,
    "POST /users": ADMIN,
    "GET /users/{user}": ADMIN,
    "POST /users/{user}/role": ADMIN,
    "POST /users/{user}/password": ADMIN,
    "POST /users/{user}/remove": ADMIN,
    "GET /tenants": OPERATE,
    "POST /tenants": OPERATE,
    "GET /tenants/{tenant}": OPERATE,
    "POST /tenants/{tenant}": OPERATE,
    "POST /tenants/{tenant}/{action}": OPERATE,
    "GET /audit": ADMIN,
    "GET /audit/chain": ADMIN,
    "GET /audit/export": ADMIN,
    "GET /audit/{number}": ADMIN,
    "GET /system": OPERATE,
}
MATRIX = API | PAGES
ALSO = {"GET /": INFERENCE}
"""What is enough as well: programs that may use models hear at the front door that the server runs."""
OTHERWISE_TESTED = {"GET /dashboard/live", "POST /login"}
"""Endless, and answers 401 by itself to an empty form."""
LAST = "POST /logout"
"""It ends the session that the other routes are asked with."""
ORIGIN = {"origin": "http://test"}


@pytest.fixture
def app(state: State) -> FastAPI:
    return create_app(state)


@pytest_asyncio.fixture
async def anonymous(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Talks from another machine, without a credential."""
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("192.0.2.1", 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield client


def test_a_prefix_does_not_make_a_path_public(state: State) -> None:
    app, router = create_app(state), APIRouter()

    @router.get("/login")
    def secret() -> str:
        return "secret"

    app.include_router(router, prefix="/hidden")
    tables = access_table(app)
    route = next(context for context in iter_route_contexts(app.routes) if context.path == "/hidden/login")
    assert tables[id(route.original_route)] == ADMIN


def routes_of(app: FastAPI) -> set[str]:
    contexts = [context for context in iter_route_contexts(app.routes) if getattr(context, "methods", None)]
    return {f"{method} {context.path}" for context in contexts for method in context.methods or ()}


def key(state: State, *scopes: str, tenant: str = "default", name: str = "test") -> dict[str, str]:
    token = state.registry.keys.create(name, scopes, actor="system", tenant=tenant).token
    state.registry.snapshots.refresh()
    return {"authorization": f"Bearer {token}"}


async def log_in(state: State, login: str = "admin") -> tuple[dict[str, str], str]:
    """Headers with a session cookie, and its CSRF token."""
    cookie = await asyncio.to_thread(state.sessions.log_in, login, ADMIN_PASSWORD, "127.0.0.1")
    assert cookie is not None
    session = await asyncio.to_thread(state.sessions.read, cookie)
    assert session is not None
    return {"cookie": f"{COOKIE}={cookie}"}, session.csrf_token


async def status_of(client: httpx.AsyncClient, route: str, headers: dict[str, str]) -> int:
    method, path = route.split(" ")
    for name in (
        "name",
        "reference",
        "alias",
        "filename",
        "prefix",
        "action",
        "user",
        "tenant",
        "number",
        "file_id",
        "batch_id",
    ):
        path = path.replace(f"{{{name}}}", "x").replace(f"{{{name}:path}}", "x")
    return (await client.request(method, path, headers=ORIGIN | headers)).status_code


def test_every_route_has_a_row(app: FastAPI) -> None:
    assert routes_of(app) - set(MATRIX) == set()
    assert set(API) - routes_of(app) == set()


LOGINS = {
    "viewer": {READ},
    "editor": {READ, INFERENCE, ADAPTERS},
    "admin": {READ, INFERENCE, ADAPTERS, ADMIN, OPERATE},
    "acme/admin": {READ, INFERENCE, ADAPTERS, ADMIN},
}
KEYS = {
    "inference": {INFERENCE},
    "adapters": {READ, ADAPTERS},
    "admin": {READ, INFERENCE, ADAPTERS, ADMIN, OPERATE},
    "acme/admin": {READ, INFERENCE, ADAPTERS, ADMIN},
}


def add_people(state: State) -> None:
    users, by = state.registry.users, "system"
    state.registry.tenants.create("acme", actor=by)
    users.create("viewer", ADMIN_PASSWORD, "viewer", actor=by)
    users.create("editor", ADMIN_PASSWORD, "editor", actor=by)
    users.create("admin", ADMIN_PASSWORD, "admin", actor=by, tenant="acme")


async def credentials_of(state: State) -> AsyncIterator[tuple[str, dict[str, str], set[str]]]:
    """Name, headers and permissions of each kind."""
    yield "none", {}, set()
    yield "wrong key", {"authorization": "Bearer lp-000000000000_wrong"}, set()
    yield "not bearer", {"authorization": f"Basic {KEY}"}, set()
    yield "wrong x-api-key", {"x-api-key": "lp-000000000000_wrong"}, set()
    yield "wrong key, right x-api-key", {"authorization": "Bearer lp-000000000000_wrong", "x-api-key": KEY}, set()
    inference = key(state, "inference", name="by x-api-key")["authorization"].removeprefix("Bearer ")
    yield "x-api-key", {"x-api-key": inference}, KEYS["inference"]
    yield "x-api-key behind basic", {"authorization": "Basic cHJveHk=", "x-api-key": inference}, KEYS["inference"]
    yield "key in a cookie", {"cookie": f"{COOKIE}={KEY}"}, set()
    yield "forged session", {"cookie": f"{COOKIE}=forged.session"}, set()
    for name, allowed in KEYS.items():
        tenant, _, scope = name.rpartition("/")
        yield f"{name} key", key(state, scope, tenant=tenant or "default"), allowed
    for login, allowed in LOGINS.items():
        session, csrf_token = await log_in(state, login)
        yield f"{login} session", {**session, **ORIGIN, "x-csrf-token": csrf_token}, allowed


async def test_matrix(app: FastAPI, anonymous: httpx.AsyncClient, state: State) -> None:
    add_people(state)
    credentials = [one async for one in credentials_of(state)]
    for route in sorted(routes_of(app) - OTHERWISE_TESTED, key=lambda route: (route == LAST, route)):
        for name, headers, allowed in credentials:
            status = await status_of(anonymous, route, headers)
            if MATRIX[route] == PUBLIC or allowed & {MATRIX[route], ALSO.get(route)}:
                assert status not in (401, 403), (route, name, status)
            else:
                assert status == (403 if allowed else 401), (route, name, status)


async def test_refusals_are_in_openai_form(anonymous: httpx.AsyncClient, state: State) -> None:
    response = await anonymous.get("/v1/models")
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    assert (error["code"], error["type"], error["param"]) == ("invalid_api_key", "authentication_error", None)
    refused = await anonymous.get("/api/v1/keys", headers=key(state, "inference"))
    assert refused.json()["error"]["code"] == "insufficient_permissions"


async def test_browsers_are_sent_to_the_login_page(anonymous: httpx.AsyncClient) -> None:
    response = await anonymous.get("/api/v1/engine", headers={"accept": "text/html"})
    assert (response.status_code, response.headers["location"]) == (303, "/login")


async def test_sessions_change_nothing_without_origin_and_token(anonymous: httpx.AsyncClient, state: State) -> None:
    session, token = await log_in(state)
    wrong: list[dict[str, str]] = [
        {},
        ORIGIN,
        {"x-csrf-token": token},
        {**ORIGIN, "x-csrf-token": "no"},
        {"origin": "http://evil.example", "x-csrf-token": token},
        {"origin": "null", "x-csrf-token": token},
        {"origin": "http://test.evil.example", "x-csrf-token": token},
    ]
    for headers in wrong:
        response = await anonymous.post("/api/v1/keys", json={"name": "a"}, headers={**session, **headers})
        assert response.status_code == 403, headers
    good = {**session, **ORIGIN, "x-csrf-token": token}
    assert (await anonymous.post("/api/v1/keys", json={"name": "a"}, headers=good)).status_code == 201


async def test_the_csrf_token_is_compared_as_a_whole(
    anonymous: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not letter by letter, so that the time it takes tells nothing."""
    session, token = await log_in(state)
    compared: list[bytes] = []

    def compare(sent: bytes, expected: bytes) -> bool:
        compared.extend((sent, expected))
        return False

    monkeypatch.setattr("loraplex.web.endpoints.authentication.hmac.compare_digest", compare)
    headers = {**session, **ORIGIN, "x-csrf-token": token}
    assert (await anonymous.post("/api/v1/keys", json={"name": "a"}, headers=headers)).status_code == 403
    assert compared == [token.encode()] * 2


async def test_a_changed_password_ends_sessions(anonymous: httpx.AsyncClient, state: State) -> None:
    session, _ = await log_in(state)
    assert (await anonymous.get("/api/v1/engine", headers=session)).status_code == 200
    await asyncio.to_thread(state.registry.users.set_password, "admin", "another good password", actor="cli")
    assert (await anonymous.get("/api/v1/engine", headers=session)).status_code == 401


async def test_a_logout_ends_that_session_for_every_copy_of_its_cookie(
    anonymous: httpx.AsyncClient, state: State
) -> None:
    (session, token), (other, _) = await log_in(state), await log_in(state)
    assert (await anonymous.get("/api/v1/keys", headers=session)).status_code == 200
    left = await anonymous.post("/logout", headers={**session, **ORIGIN, "x-csrf-token": token})
    assert (left.status_code, left.headers["location"]) == (303, "/login")
    assert (await anonymous.get("/api/v1/keys", headers=session)).status_code == 401
    assert (await anonymous.get("/api/v1/keys", headers=other)).status_code == 200


async def test_who_guesses_waits_and_keeps_nobody_else_out(anonymous: httpx.AsyncClient, state: State) -> None:
    transport = anonymous._transport
    assert isinstance(transport, httpx.ASGITransport)

    async def log_in(user: str, password: str, address: str) -> httpx.Response:
        transport.client = (address, 1)
        return await anonymous.post("/login", data={"user": user, "password": password}, headers=ORIGIN)

    answers = [await log_in("admin", "wrong", "198.51.100.7") for _ in range(MOST_AT_AN_ACCOUNT)]
    assert {answer.status_code for answer in answers} == {401}
    refused = await log_in("admin", ADMIN_PASSWORD, "198.51.100.7")
    assert (refused.status_code, "Too many wrong passwords" in refused.text) == (429, True)
    assert (await log_in("nobody", "wrong", "198.51.100.7")).status_code == 401
    assert (await log_in("admin", ADMIN_PASSWORD, "198.51.100.8")).status_code == 303


async def test_a_revoked_key_stops_working(anonymous: httpx.AsyncClient, state: State) -> None:
    admin = key(state, "admin")
    made = (await anonymous.post("/api/v1/keys", json={"name": "temporary"}, headers=admin)).json()
    headers = {"authorization": f"Bearer {made['token']}"}
    assert (await anonymous.get("/v1/models", headers=headers)).status_code == 200
    listed = (await anonymous.get("/api/v1/keys", headers=admin)).text
    assert made["prefix"] in listed
    assert made["token"] not in listed
    assert (await anonymous.delete(f"/api/v1/keys/{made['prefix']}", headers=admin)).status_code == 204
    assert (await anonymous.get("/v1/models", headers=headers)).status_code == 401


async def test_keys_are_not_believed_for_ever_without_a_database(
    anonymous: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loraplex.web.endpoints.authentication.MAX_SNAPSHOT_AGE", -1.0)
    response = await anonymous.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")


async def test_metrics_without_a_key_only_for_this_machine(client: httpx.AsyncClient) -> None:
    del client.headers["authorization"]
    assert (await client.get("/metrics")).status_code == 200


@pytest.mark.parametrize("host", ["test/health?", "test/health#", "a@b", "test:99999", "", "x" * 5000])
async def test_the_host_header_opens_nothing(anonymous: httpx.AsyncClient, host: str) -> None:
    for path in ("/v1/models", "/api/v1/keys", "/metrics"):
        assert (await anonymous.get(path, headers={"host": host})).status_code == 401


async def test_security_headers_are_everywhere(anonymous: httpx.AsyncClient) -> None:
    for path in ("/health", "/v1/models", "/nowhere"):
        headers: Any = (await anonymous.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "default-src 'self'" in headers["content-security-policy"]
