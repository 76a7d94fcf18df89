"""The wall between tenants: every route that takes an id, asked by one tenant for what is another's.

The answer must be the one for an id that nobody has, to the last byte. A route with an id and without a row here fails.
"""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from bs4 import BeautifulSoup
from fastapi import FastAPI

from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.web.app import create_app
from loraplex.web.state import State

from .conftest import ADMIN_PASSWORD, served
from .fake_engine import FakeEngine
from .test_access import key, log_in, routes_of
from .test_adapters_api import add, put

NOBODYS = {"name": "absent", "user": "nobody", "prefix": "0123456789ab", "sha256": "0" * 64}
NOBODYS |= {"file_id": f"file-{'0' * 24}", "batch_id": f"batch_{'0' * 24}", "response_id": f"resp_{'0' * 32}"}
"""As long as those of the tenant that is looked at."""
FILES: dict[str, Any] = {"config_sha256": "SHA256", "weights_sha256": "SHA256"}
ROWS: dict[str, dict[str, Any]] = {
    "GET /v1/models/{name:path}": {},
    "GET /v1/files/{file_id}": {},
    "DELETE /v1/files/{file_id}": {},
    "GET /v1/files/{file_id}/content": {},
    "GET /v1/responses/{response_id}": {},
    "DELETE /v1/responses/{response_id}": {},
    "GET /v1/responses/{response_id}/input_items": {},
    "POST /v1/responses/{response_id}/cancel": {},
    "GET /v1/batches/{batch_id}": {},
    "POST /v1/batches/{batch_id}/cancel": {},
    "POST /batches/{batch_id}/cancel": {},
    "GET /api/v1/adapters/{name}": {},
    "GET /api/v1/adapters/{reference}/report": {},
    "POST /api/v1/adapters/{name}/versions": {"json": FILES},
    "PATCH /api/v1/adapters/{reference}": {"json": {"enabled": False}},
    "DELETE /api/v1/adapters/{reference}": {},
    "GET /api/v1/adapters/{name}/aliases": {},
    "GET /api/v1/adapters/{name}/aliases/{alias}": {},
    "POST /api/v1/adapters/{name}/aliases/{alias}/promote": {},
    "POST /api/v1/adapters/{name}/aliases/{alias}/rollback": {},
    "PUT /api/v1/adapters/{name}/aliases/{alias}/guard": {"json": {"max_error_rate": 0.1}},
    "DELETE /api/v1/adapters/{name}/aliases/{alias}/guard": {},
    "PUT /api/v1/adapters/{name}/aliases/{alias}/shadow": {"json": {"version": 1, "percent": 1}},
    "DELETE /api/v1/adapters/{name}/aliases/{alias}/shadow": {},
    "PUT /api/v1/adapters/{name}/aliases/{alias}": {"json": {"version": 1}},
    "DELETE /api/v1/adapters/{name}/aliases/{alias}": {},
    "POST /api/v1/adapters/{reference}/load": {},
    "POST /api/v1/adapters/{reference}/evict": {},
    "POST /api/v1/adapters/{name}/undo": {},
    "PUT /api/v1/adapters/{name}/files/{filename}": {"content": b"", "headers": {"x-content-sha256": "SHA256"}},
    "GET /api/v1/adapters/{reference}/certificate": {},
    "POST /api/v1/adapters/{reference}/certify": {},
    "GET /api/v1/adapters/{name}/prompts": {},
    "PUT /api/v1/adapters/{name}/prompts": {"json": {"prompts": ["What is this?"]}},
    "DELETE /api/v1/adapters/{name}/prompts": {},
    "GET /api/v1/adapters/{reference}/profile": {},
    "PUT /api/v1/adapters/{reference}/profile": {"json": {"system_prompt": "Tell me all."}},
    "DELETE /api/v1/adapters/{reference}/profile": {},
    "GET /api/v1/keys/{prefix}": {},
    "PATCH /api/v1/keys/{prefix}": {"json": {"limits": {"tokens_per_day": 1}}},
    "DELETE /api/v1/keys/{prefix}": {},
    "PATCH /api/v1/users/{user}": {"json": {"password": "a stolen account"}},
    "DELETE /api/v1/users/{user}": {},
    "GET /api/v1/tenants/{tenant}": {},
    "PATCH /api/v1/tenants/{tenant}": {"json": {"disabled": True}},
    "GET /api/v1/adapters/{name}/files/{filename}": {
        "params": {"size": "1"},
        "headers": {"x-content-sha256": "SHA256"},
    },
    "GET /adapters/{name}": {},
    "GET /adapters/{name}/states": {},
    "GET /adapters/{name}/traffic": {},
    "GET /adapters/{name}/diff": {"params": {"before": "1", "after": "1"}},
    "GET /adapters/{name}/tensors": {},
    "POST /adapters/{name}/check": {"data": FILES},
    "POST /adapters/{name}/versions": {"data": FILES},
    "POST /adapters/{name}/delete": {"data": {"confirm": "NAME"}},
    "POST /adapters/{name}/undo": {"data": {"change": "0123456789abcdef"}},
    "GET /adapters/{reference}/profile": {},
    "POST /adapters/{reference}/profile": {"data": {"system_prompt": "Tell me all."}},
    "POST /adapters/{reference}/profile/preview": {"data": {"message": "Hello"}},
    "GET /adapters/{name}/aliases": {},
    "POST /adapters/{name}/aliases": {"data": {"alias": "prod", "version": "1"}},
    "POST /adapters/{name}/aliases/{alias}/{action}": {"data": {"stable": "1"}},
    "POST /adapters/{reference}/{action}": {},
    "POST /cache/{reference}/{action}": {},
    "GET /keys/{prefix}": {},
    "POST /keys/{prefix}": {"data": {"tokens_per_day": "1"}},
    "POST /keys/{prefix}/revoke": {},
    "GET /users/{user}": {},
    "POST /users/{user}/role": {"data": {"role": "viewer"}},
    "POST /users/{user}/password": {"data": {"password": "a stolen account"}},
    "POST /users/{user}/remove": {},
    "GET /tenants/{tenant}": {},
    "POST /tenants/{tenant}": {"data": {"tokens_per_day": "1"}},
    "POST /tenants/{tenant}/{action}": {},
    "GET /audit/{number}": {},
}
MAKE_THEIR_OWN = {
    "POST /api/v1/adapters/{name}/versions",
    "PUT /api/v1/adapters/{name}/files/{filename}",
    "GET /api/v1/adapters/{name}/files/{filename}",
    "POST /adapters/{name}/check",
    "POST /adapters/{name}/versions",
}
"""A name is free in every tenant, so these are not answered 404; the files of others must still be missing."""
OPERATORS = {route for route in ROWS if "{tenant}" in route}
LISTS = (
    *(
        "/v1/models",
        "/v1/files",
        "/v1/batches",
        "/api/v1/adapters",
        "/api/v1/keys",
        "/api/v1/users",
        "/api/v1/usage",
        "/api/v1/audit",
    ),
    *(
        "/",
        "/adapters",
        "/cache",
        "/playground",
        "/requests",
        "/batches",
        "/dashboard/state",
        "/api/v1/audit?everyone=true",
    ),
    *("/keys?show=all", "/users", "/usage", "/usage/csv?by=day,key,adapter", "/usage/points", "/audit"),
    *("/api/v1/audit/export", "/audit?everyone=true", "/audit/export", "/audit/export?format=jsonl&everyone=true"),
)
OF_ANY_TENANT = (
    *("/v1/files", "/v1/batches"),
    *("/api/v1/keys", "/api/v1/users", "/api/v1/usage", "/api/v1/audit", "/api/v1/audit/export"),
    *("/keys", "/users", "/batches", "/usage", "/usage/csv", "/usage/points", "/audit", "/audit/export"),
)


@pytest.fixture
def app(state: State) -> FastAPI:
    return create_app(state)


async def theirs(state: State, client: httpx.AsyncClient, folder: Path) -> dict[str, str]:
    """What the tenant acme has; ids by the names that routes use."""
    headers = key(state, "admin", tenant="acme")
    client.headers.update(headers)
    assert (await add(client, "secret", folder)).status_code == 201
    assert (await client.put("/api/v1/adapters/secret/aliases/prod", json={"version": 1})).status_code == 200
    assert (await client.post("/v1/completions", json={"model": "secret", "prompt": "hi"})).status_code == 200
    body = {"name": "carola", "password": "correct horse", "role": "admin"}
    assert (await client.post("/api/v1/users", json=body)).status_code == 201
    prefix = (await client.get("/api/v1/keys")).json()["data"][0]["prefix"]
    weights = hashlib.sha256((folder / WEIGHTS_FILE).read_bytes()).hexdigest()
    form = {"data": {"purpose": "batch"}, "files": {"file": ("secret.jsonl", b"{}")}}
    file_id = (await client.post("/v1/files", **form)).json()["id"]
    response = (await client.post("/v1/responses", json={"model": "secret", "input": "hi"})).json()["id"]
    new = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch_id = (await client.post("/v1/batches", json=new)).json()["id"]
    while (await client.get(f"/v1/batches/{batch_id}")).json()["status"] != "failed":
        await asyncio.sleep(0.02)
    ids = {"file_id": file_id, "batch_id": batch_id, "response_id": response}
    return ids | {"name": "secret", "user": "carola", "prefix": prefix, "sha256": weights}


async def ask(client: httpx.AsyncClient, route: str, ids: dict[str, str], row: str) -> httpx.Response:
    """`row`: a number of the audit log."""
    method, path = route.split(" ")
    places = ids | {"reference": ids["name"], "name:path": ids["name"], "alias": "prod", "action": "evict"}
    if "/aliases/{alias}/{action}" in path:
        places["action"] = "weights"
    places |= {"tenant": "acme" if ids is not NOBODYS else "none", "filename": WEIGHTS_FILE, "number": row}
    for name, value in places.items():
        path = path.replace(f"{{{name}}}", value)
    return await client.request(method, path, **filled(ROWS[route], ids))


def filled(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: filled(member, ids) for name, member in value.items()}
    return {"SHA256": ids["sha256"], "NAME": ids["name"]}.get(value, value) if isinstance(value, str) else value


def without(response: httpx.Response, ids: dict[str, str]) -> str:
    text = response.text
    for name, value in ids.items():
        text = text.replace(value, f"<{name}>")
    return text


async def everything_of(client: httpx.AsyncClient, headers: dict[str, str]) -> list[Any]:
    of_one = ["/v1/files", "/v1/batches", *(f"/api/v1/adapters/secret/{part}" for part in ("prompts", "profile"))]
    paths = ("/api/v1/adapters", "/api/v1/users", "/api/v1/audit", *of_one)
    return [(await client.get(path, headers=headers)).json() for path in paths]


def test_every_route_with_an_id_has_a_row(app: FastAPI) -> None:
    assert {route for route in routes_of(app) if "{" in route} == set(ROWS)


async def test_what_is_anothers_does_not_exist(state: State, adapter_folders: list[Path]) -> None:
    for tenant in ("acme", "rival"):
        state.registry.tenants.create(tenant, actor="system")
    async with served(state) as client:
        ids, owner = await theirs(state, client, adapter_folders[0]), {}
        owner["authorization"] = client.headers["authorization"]
        before = await everything_of(client, owner)
        row = str((await client.get("/api/v1/audit", headers=owner)).json()["data"][0]["id"])
        client.headers.update(key(state, "admin", tenant="rival"))
        for route in ROWS:
            found, absent = await ask(client, route, ids, row), await ask(client, route, NOBODYS, "9" * 9)
            assert found.status_code == absent.status_code, (route, found.text)
            assert without(found, ids) == without(absent, NOBODYS), route
            if route not in MAKE_THEIR_OWN:
                assert found.status_code == (403 if route in OPERATORS else 404), (route, found.text)
        for path in LISTS:
            text = (await client.get(path)).text
            assert not [value for value in ids.values() if value in text], path
            assert "acme" not in text and state.settings.model not in text, path
        for path in OF_ANY_TENANT:
            for tenant in ("acme", "none"):
                assert (await client.get(path, params={"tenant": tenant})).status_code == 404, path
        assert await everything_of(client, owner) == before


async def test_equal_bytes_are_sent_again_and_cached_prompts_are_not_shared(
    state: State, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    folder = adapter_folders[0]
    for tenant in ("acme", "rival"):
        state.registry.tenants.create(tenant, actor="system")
    async with served(state) as client:
        for tenant in ("acme", "rival"):
            client.headers.update(key(state, "admin", tenant=tenant))
            for already_here in (False, True):
                answer = await put(client, "sql", CONFIG_FILE, (folder / CONFIG_FILE).read_bytes())
                assert answer.json()["already_here"] is already_here, tenant
            assert (await client.post("/v1/completions", json={"model": "tiny", "prompt": "hi"})).status_code == 200
    salts = {request.cache_salt for request in engine.requests}
    assert len(salts) == 2 and {request.tenant for request in engine.requests} == {"acme", "rival"}


async def test_the_operator_reaches_a_tenant_by_name(state: State) -> None:
    state.registry.tenants.create("acme", actor="system")
    async with served(state) as client:
        client.headers.update(key(state, "admin"))
        body = {"name": "first", "scopes": ["admin"]}
        token = (await client.post("/api/v1/keys", params={"tenant": "acme"}, json=body)).json()["token"]
        theirs = {"authorization": f"Bearer {token}"}
        [row] = (await client.get("/api/v1/audit", headers=theirs)).json()["data"][:1]
        assert (row["action"], row["tenant"]) == ("key.create", "acme")
        assert row["actor"].startswith("default/key:")
        assert (await client.get("/api/v1/me", headers=theirs)).json()["tenant"] == "acme"


async def test_what_others_have_in_memory_is_nobodys_business(
    state: State, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    """Neither how many adapters there are, nor their ranks, sizes and idle times, nor what others ask for."""
    for tenant in ("acme", "rival"):
        state.registry.tenants.create(tenant, actor="system")
        state.registry.users.create("vera", ADMIN_PASSWORD, "admin", actor="system", tenant=tenant)
    async with served(state) as client:
        for tenant, folder in zip(("acme", "rival"), adapter_folders, strict=True):
            client.headers.update(key(state, "admin", tenant=tenant))
            assert (await add(client, f"{tenant}-sql", folder)).status_code == 201
            assert (await client.post(f"/api/v1/adapters/{tenant}-sql/load")).status_code == 200
        engine.delay, body = 0.05, {"model": "acme-sql", "prompt": "hi", "max_tokens": 200, "ignore_eos": True}
        running = asyncio.create_task(
            client.post("/v1/completions", json=body, headers=key(state, "admin", tenant="acme"))
        )
        while not engine.running:
            await asyncio.sleep(0.01)
        client.headers.pop("authorization")
        documents = {}
        for login in ("acme/vera", "rival/vera", "admin"):
            session, _ = await log_in(state, login)
            documents[login] = (await client.get("/dashboard/state", headers=session)).json()
            cache = (await client.get("/cache", headers=session | {"accept": "text/html"})).text
            assert ("Memory by tenant" in cache) == (login == "admin")
            if login == "rival/vera":
                assert "acme" not in cache and "in memory, 1.0 kB of" in cache and "what-if" not in cache
                assert (await client.get("/cache/what-if", headers=session)).status_code == 403
        tiles = {login: [tile["label"] for tile in it["residency"]["tiles"]] for login, it in documents.items()}
        assert tiles == {
            "acme/vera": ["acme-sql"],
            "rival/vera": ["rival-sql"],
            "admin": ["acme/acme-sql", "rival/rival-sql"],
        }
        assert {login: it["engine"]["running"] for login, it in documents.items()} == {
            "acme/vera": 1,
            "rival/vera": 0,
            "admin": 1,
        }
        assert documents["rival/vera"]["residency"]["sentence"].startswith("1 of 1 adapter in memory, 1.0 kB of")
        assert documents["rival/vera"]["blocks"]["legend"] == {}
        assert documents["acme/vera"]["blocks"]["legend"] == {"3": "acme-sql"}
        assert documents["admin"]["residency"]["tiles"][0]["path"] == "/adapters/acme-sql?tenant=acme"
        rival = json.dumps(documents["rival/vera"])
        assert "acme" not in rival and "another adapter" not in rival
        assert documents["rival/vera"]["blocks"]["shared"] == "0 of 0"
        running.cancel()
        theirs = key(state, "admin", tenant="rival")
        assert (await client.get("/api/v1/adapters", headers=theirs)).json()["generation"] is None


async def test_memory_is_told_by_tenant_with_real_names_to_the_operator(
    state: State, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    state.registry.tenants.create("acme", actor="system")
    async with served(state) as client:
        for tenant, folder in zip(("acme", "default"), adapter_folders, strict=True):
            client.headers.update(key(state, "admin", tenant=tenant))
            assert (await add(client, "sql", folder)).status_code == 201
        assert (await client.post("/api/v1/adapters/sql/load", params={"tenant": "acme"})).status_code == 200
        client.headers.pop("authorization")
        session, _ = await log_in(state, "admin")
        page = BeautifulSoup(
            (await client.get("/cache", headers=session | {"accept": "text/html"})).text, "html.parser"
        )
        heading = page.select_one("#tenants-heading")
        assert heading is not None and heading.parent is not None
        rows = [row.get_text(" ", strip=True) for row in heading.parent.select("tbody tr")]
        assert rows == ["acme 1 1.0 kB 0 B 0 0 0"]
        links = {link.text: link["href"] for link in page.select("table.two-lines tbody a")}
        assert links == {"acme/sql": "/adapters/sql?tenant=acme", "sql": "/adapters/sql"}
        forms = {str(form["action"]) for form in page.select("table.two-lines form")}
        assert forms >= {"/cache/sql/evict?tenant=acme", "/cache/sql/load"}
