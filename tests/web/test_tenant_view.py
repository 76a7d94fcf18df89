"""The operator looks at another tenant's things and changes them: pages and the API mean that tenant, and say so."""

import hashlib
from pathlib import Path

import httpx
import pytest
from bs4 import BeautifulSoup

from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.web.management.registration import FIELDS
from loraplex.web.state import State

from .conftest import ADMIN_PASSWORD
from .test_access import ORIGIN, add_people, key, log_in
from .test_adapters_api import add
from .test_pages import HTML

ACME = {"tenant": "acme"}
PAGES = (
    *("/", "/adapters", "/adapters/sql", "/upload", "/cache", "/playground", "/requests", "/usage", "/keys", "/users"),
    *("/batches", "/audit", "/tenants", "/system", "/account", "/adapters/none"),
)


@pytest.fixture
async def acme(client: httpx.AsyncClient, state: State, adapter_folders: list[Path]) -> None:
    """A tenant with an adapter that the operator's own tenant does not have."""
    add_people(state)
    client.headers.update(key(state, "admin", tenant="acme"))
    assert (await add(client, "sql", adapter_folders[0])).status_code == 201


@pytest.fixture
async def operator(client: httpx.AsyncClient, state: State, acme: None) -> httpx.AsyncClient:
    session, token = await log_in(state, "admin")
    client.headers.pop("authorization")
    client.headers.update(HTML | session | ORIGIN | {"x-csrf-token": token})
    return client


async def test_every_page_says_whose_things_it_shows_and_keeps_the_choice(operator: httpx.AsyncClient) -> None:
    for path in PAGES:
        page = BeautifulSoup((await operator.get(path, params=ACME)).text, "html.parser")
        viewing = page.select_one("#viewing")
        assert viewing is not None and viewing.text.startswith("Viewing tenant acme."), path
        way_back = str(viewing.select("a")[0]["href"])
        assert "?" not in way_back and (await operator.get(way_back)).status_code == 200
        assert page.select_one("#switch option[selected]").text == "acme"  # type: ignore[union-attr]
        for link in page.select("a[href^='/'], form[action^='/']"):
            address = str(link.get("href") or link.get("action"))
            in_form = bool(link.select("[name=tenant]"))
            assert "tenant=acme" in address or in_form or address in {way_back, "/logout"}, link


async def test_own_pages_have_the_choice_and_say_nothing(operator: httpx.AsyncClient) -> None:
    for path in PAGES:
        page = BeautifulSoup((await operator.get(path)).text, "html.parser")
        assert [option["value"] for option in page.select("#switch option")] == ["", "acme"], path
        assert not page.select("#viewing"), path
        assert path == "/cache" or "tenant=acme" not in str(page), path


async def test_nobody_else_has_a_choice(client: httpx.AsyncClient, state: State, acme: None) -> None:
    client.headers.pop("authorization")
    for login, other in (("editor", "acme"), ("viewer", "acme"), ("acme/admin", "default")):
        session, _ = await log_in(state, login)
        client.headers.update(HTML | session)
        page = await client.get("/")
        assert page.status_code == 200 and 'id="switch"' not in page.text
        for path in PAGES:
            assert (await client.get(path, params={"tenant": other})).status_code in (403, 404), (login, path)


async def test_without_other_tenants_there_is_no_choice(client: httpx.AsyncClient, state: State) -> None:
    session, _ = await log_in(state, "admin")
    client.headers.pop("authorization")
    client.headers.update(HTML | session)
    assert 'id="switch"' not in (await client.get("/")).text


async def test_many_tenants_are_chosen_on_their_own_page(
    operator: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loraplex.web.admin.tenant_switch.MOST_NAMES", 1)
    state.registry.tenants.create("zeta", actor="system")
    state.registry.snapshots.refresh()
    page = BeautifulSoup((await operator.get("/", params={"tenant": "zeta"})).text, "html.parser")
    assert [option.text for option in page.select("#switch option")] == ["default (yours)", "acme", "zeta"]
    page = BeautifulSoup((await operator.get("/")).text, "html.parser")
    assert page.select("#switch a")[0]["href"] == "/tenants"


async def test_pages_show_and_change_what_the_tenant_has(operator: httpx.AsyncClient, state: State) -> None:
    assert ">sql</a>" in (await operator.get("/adapters", params=ACME)).text
    assert ">sql</a>" not in (await operator.get("/adapters")).text
    assert (await operator.get("/adapters/sql")).status_code == 404
    assert 'value="sql"' in (await operator.get("/playground", params=ACME)).text
    assert "/adapters/sql?tenant=acme" in (await operator.get("/cache", params=ACME)).text
    answer = await operator.post("/adapters/sql/disable", params=ACME)
    assert (answer.status_code, answer.headers["location"]) == (303, "/adapters/sql?done=disable&tenant=acme")
    assert not state.registry.adapters.get("sql", "acme").enabled
    entry = state.registry.audit.entries(tenant="acme")[0]
    assert (entry.action, entry.actor) == ("adapter.disable", "default/user:admin")


async def test_the_operator_uploads_for_a_tenant(
    operator: httpx.AsyncClient, state: State, adapter_folders: list[Path]
) -> None:
    digests = {}
    for file in (CONFIG_FILE, WEIGHTS_FILE):
        data = (adapter_folders[1] / file).read_bytes()
        digests[FIELDS[file]] = sha256 = hashlib.sha256(data).hexdigest()
        path, sent = f"/api/v1/adapters/new/files/{file}", {"x-content-sha256": sha256}
        assert (await operator.put(path, params=ACME, content=data, headers=sent)).status_code == 201
    assert (await operator.post("/adapters/new/versions", data=digests)).status_code == 202, "not the operator's own"
    answer = await operator.post("/adapters/new/versions", params=ACME, data=digests)
    assert answer.status_code == 200 and "new" in answer.text
    assert state.registry.adapters.get("new", "acme").versions[0].uploaded_by == "default/user:admin"
    assert state.registry.audit.entries(tenant="acme")[0].actor == "default/user:admin"
    asked = await operator.post(
        "/v1/completions", params=ACME, json={"model": "new", "prompt": "hi"}, headers={"accept": "*/*"}
    )
    assert asked.status_code == 200
    assert (await operator.post("/v1/completions", json={"model": "new", "prompt": "hi"})).status_code == 404


async def test_the_api_means_the_named_tenant_too(client: httpx.AsyncClient, state: State, acme: None) -> None:
    client.headers.update(key(state, "admin"))
    names = [one["name"] for one in (await client.get("/api/v1/adapters", params=ACME)).json()["data"]]
    assert names == ["sql"]
    assert (await client.get("/api/v1/adapters")).json()["data"] == []
    answer = await client.put("/api/v1/adapters/sql/aliases/prod", params=ACME, json={"version": 1})
    assert answer.status_code == 200
    entry = state.registry.audit.entries(tenant="acme")[0]
    assert entry.action == "alias.set" and entry.actor.startswith("default/key:")
    document = (await client.get("/api/v1/openapi.json")).json()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert [one["name"] for one in operation["parameters"]].count("tenant") >= 1, path


async def test_ones_own_password_stays_ones_own(operator: httpx.AsyncClient, state: State) -> None:
    fields = {"current": ADMIN_PASSWORD, "password": "another good password"}
    assert (await operator.post("/account/password", params=ACME, data=fields)).status_code == 303
    assert state.registry.users.verify("admin", "another good password") is not None
    assert state.registry.users.verify("admin", ADMIN_PASSWORD, "acme") is not None
    assert state.registry.audit.entries(tenant="default")[0].actor == "user:admin"
