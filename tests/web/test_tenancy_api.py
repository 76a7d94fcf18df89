"""Users, tenants, usage and the audit log over HTTP."""

import asyncio
import csv
import io
from typing import Any

import httpx
import pytest

from loraplex.web.access.sessions import COOKIE
from loraplex.web.state import State

from .conftest import ADMIN_PASSWORD, KEY
from .test_access import ORIGIN, log_in

NEW_PASSWORD = "another good password"
Headers = dict[str, str]


@pytest.fixture(autouse=True)
def as_admin(client: httpx.AsyncClient, admin: Headers) -> None:
    client.headers.update(admin)


async def session_headers(state: State, login: str) -> Headers:
    session, token = await log_in(state, login)
    return {**session, **ORIGIN, "x-csrf-token": token, "authorization": ""}


async def make_user(client: httpx.AsyncClient, name: str, role: str, **params: str) -> None:
    body = {"name": name, "password": ADMIN_PASSWORD, "role": role}
    assert (await client.post("/api/v1/users", json=body, params=params)).status_code == 201


async def as_session(client: httpx.AsyncClient, method: str, path: str, headers: Headers, body: Any = None) -> int:
    """Without the client's own key."""
    sent = {name: value for name, value in headers.items() if name != "authorization"}
    key = client.headers.pop("authorization")
    try:
        return (await client.request(method, path, headers=sent, json=body)).status_code
    finally:
        client.headers["authorization"] = key


async def test_users_are_made_changed_and_removed(client: httpx.AsyncClient, state: State) -> None:
    await make_user(client, "bob", "viewer")
    names = [user["name"] for user in (await client.get("/api/v1/users")).json()["data"]]
    assert names == ["admin", "bob"]
    bob = await session_headers(state, "bob")
    assert await as_session(client, "POST", "/api/v1/adapters/x/load", bob) == 403
    assert (await client.patch("/api/v1/users/bob", json={"role": "editor"})).json()["role"] == "editor"
    assert await as_session(client, "POST", "/api/v1/adapters/x/load", bob) == 404
    assert (await client.patch("/api/v1/users/bob", json={"password": NEW_PASSWORD})).status_code == 200
    assert await as_session(client, "GET", "/api/v1/me", bob) == 401
    assert (await client.delete("/api/v1/users/bob")).status_code == 204
    for method, path, body, status in (
        ("DELETE", "/api/v1/users/bob", None, 404),
        ("DELETE", "/api/v1/users/admin", None, 409),
        ("PATCH", "/api/v1/users/admin", {"role": "viewer"}, 409),
        ("PATCH", "/api/v1/users/admin", {"role": "root"}, 400),
        ("POST", "/api/v1/users", {"name": "admin", "password": ADMIN_PASSWORD, "role": "admin"}, 409),
        ("POST", "/api/v1/users", {"name": "eve", "password": "short", "role": "admin"}, 400),
        ("POST", "/api/v1/users", {"name": "Eve", "password": ADMIN_PASSWORD, "role": "admin"}, 400),
    ):
        assert (await client.request(method, path, json=body)).status_code == status, (method, path, body)


async def test_what_is_refused_in_part_is_not_done_at_all(client: httpx.AsyncClient, state: State) -> None:
    await make_user(client, "bob", "viewer")
    assert (await client.post("/api/v1/tenants", json={"name": "acme"})).status_code == 201
    user, tenant = {"role": "editor", "password": "short"}, {"disabled": True, "limits": {"requests_per_minute": 0}}
    for path, body in (("/api/v1/users/bob", user), ("/api/v1/tenants/acme", tenant)):
        assert (await client.patch(path, json=body)).status_code == 400, path
    assert state.registry.users.require("bob").role == "viewer"
    assert state.registry.tenants.get("acme").disabled_at is None


async def test_people_change_their_own_password(client: httpx.AsyncClient, state: State) -> None:
    await make_user(client, "bob", "viewer")
    bob, path = await session_headers(state, "bob"), "/api/v1/me/password"
    wrong = {"current": "not the password", "new": NEW_PASSWORD}
    assert await as_session(client, "PUT", path, bob, wrong) == 400
    assert await as_session(client, "PUT", path, bob, {"current": ADMIN_PASSWORD, "new": "short"}) == 400
    assert await as_session(client, "PUT", path, bob, {"current": ADMIN_PASSWORD, "new": NEW_PASSWORD}) == 204
    assert await as_session(client, "GET", "/api/v1/me", bob) == 401
    assert await asyncio.to_thread(state.sessions.log_in, "bob", ADMIN_PASSWORD, "127.0.0.1") is None
    assert await asyncio.to_thread(state.sessions.log_in, "bob", NEW_PASSWORD, "127.0.0.1")


async def test_logins_of_another_tenant_stay_in_it(client: httpx.AsyncClient, state: State) -> None:
    assert (await client.post("/api/v1/tenants", json={"name": "acme"})).status_code == 201
    await make_user(client, "bob", "admin", tenant="acme")
    assert await asyncio.to_thread(state.sessions.log_in, "bob", ADMIN_PASSWORD, "127.0.0.1") is None
    bob = await session_headers(state, "acme/bob")
    me = await client.get("/api/v1/me", headers={**bob, "authorization": f"Bearer {KEY}"})
    assert me.status_code == 403, "a key wins over a cookie"
    assert await as_session(client, "GET", "/api/v1/tenants", bob) == 403
    assert await as_session(client, "GET", "/api/v1/users?tenant=default", bob) == 404
    assert await as_session(client, "GET", "/", bob) == 200
    disabled = await client.patch("/api/v1/tenants/acme", json={"disabled": True})
    assert disabled.json()["disabled_at"]
    assert await as_session(client, "GET", "/", bob) == 401
    told = ((ADMIN_PASSWORD, 403, "is disabled"), (NEW_PASSWORD, 401, "Wrong user or password"))
    for password, status, words in told:
        page = await client.post("/login", data={"user": "acme/bob", "password": password}, headers=ORIGIN)
        assert (page.status_code, words in page.text, COOKIE in page.cookies) == (status, True, False)
    assert (await client.patch("/api/v1/tenants/default", json={"disabled": True})).status_code == 400
    assert (await client.post("/api/v1/tenants", json={"name": "acme"})).status_code == 409
    assert COOKIE in bob["cookie"]


async def test_usage_as_json_and_csv(client: httpx.AsyncClient, state: State) -> None:
    for _ in range(2):
        body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
    await asyncio.to_thread(state.quotas.ledger.flush)
    found = (await client.get("/api/v1/usage")).json()
    [row] = found["data"]
    assert (row["requests"], row["prompt_tokens"], row["completion_tokens"], row["cached_tokens"]) == (2, 6, 8, 8)
    assert (row["adapter_name"], row["adapter_digest"], found["total"]["requests"]) == ("tiny", "", 2)
    prefix = row["actor"].removeprefix("key:")
    for query, requests in (
        ({"key": prefix}, [2]),
        ({"key": "0123456789ab"}, []),
        ({"user": "admin"}, []),
        ({"adapter": "tiny", "from": row["day"], "to": row["day"]}, [2]),
        ({"to": "2020-01-01"}, []),
        ({"key": "a\0b"}, []),
    ):
        rows = (await client.get("/api/v1/usage", params=query)).json()["data"]
        assert [row["requests"] for row in rows] == requests, query
    sheet = await client.get("/api/v1/usage", params={"format": "csv", "by": "key"})
    assert sheet.headers["content-type"].startswith("text/csv")
    assert [row["requests"] for row in csv.DictReader(io.StringIO(sheet.text))] == ["2"]
    for wrong in ({"from": "yesterday"}, {"to": "2026-13-01"}, {"by": "tenant"}, {"format": "xml"}):
        refused = await client.get("/api/v1/usage", params=wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(wrong)))


async def test_a_report_is_as_long_as_the_operator_asks_for(client: httpx.AsyncClient, state: State) -> None:
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 1}
    for headers in ({}, {"authorization": f"Bearer {KEY}"}):
        assert (await client.post("/v1/completions", json=body, headers=headers)).status_code == 200
    await asyncio.to_thread(state.quotas.ledger.flush)
    await client.post("/api/v1/tenants", json={"name": "acme"})
    made = await client.post("/api/v1/keys", json={"name": "ci", "scopes": ["admin"]}, params={"tenant": "acme"})
    acme = {"authorization": f"Bearer {made.json()['token']}"}
    for limit, headers, status in ((1, {}, 400), (10_001, {}, 200), (10_000, acme, 200), (10_001, acme, 403)):
        answer = await client.get("/api/v1/usage", params={"by": "key", "limit": limit}, headers=headers)
        assert answer.status_code == status, answer.text
        assert status != 400 or "more than 1 rows" in answer.json()["error"]["message"]


async def test_the_audit_log_says_whether_it_is_intact(
    client: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loraplex.web.audit.chain_check.FRESH_SECONDS", 0)
    await client.post("/api/v1/tenants", json={"name": "acme"})
    await client.post("/api/v1/keys", json={"name": "one"})
    found = (await client.get("/api/v1/audit", params={"verify": True, "limit": 2, "everyone": True})).json()
    assert [row["action"] for row in found["data"]] == ["key.create", "tenant.create"]
    assert [row["tenant"] for row in found["data"]] == ["default", "acme"]
    assert found["chain"]["intact"] and found["chain"]["head"] == found["data"][0]["hash"]
    with state.registry.database.write() as session:
        session.connection().exec_driver_sql("UPDATE audit SET actor = 'cli' WHERE action = 'key.create'")
    page = (await client.get("/api/v1/audit", params={"verify": True})).json()
    assert (page["data"][0]["intact"], page["chain"]["intact"]) == (False, False)
    for wrong in ({"limit": 0}, {"before": "x"}):
        refused = await client.get("/api/v1/audit", params=wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(wrong)))
