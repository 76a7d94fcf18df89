"""The pages of users and of tenants: who may log in, as what, and what the last admin is kept from."""

import httpx
import pytest
from bs4 import BeautifulSoup

from loraplex.registry.access.quotas import Quota
from loraplex.web.state import State

from .conftest import ADMIN_PASSWORD
from .test_access import log_in
from .test_key_pages import errors_of, soup_of
from .test_pages import HTML, HTMX, ORIGIN, Headers, first_data, login, person, trusted

__all__ = ["first_data", "login", "person", "trusted"]

PASSWORD = "a good password"


def rows_of(answer: httpx.Response) -> list[str]:
    return [row.text for row in soup_of(answer).select(".owned tbody td:first-child a")]


async def logs_in(client: httpx.AsyncClient, user: str, password: str) -> bool:
    fields = {"user": user, "password": password}
    return (await client.post("/login", data=fields, headers=ORIGIN | {"cookie": ""})).status_code == 303


async def test_a_user_is_invited_with_a_password_that_is_shown_once(
    person: httpx.AsyncClient, trusted: Headers, state: State
) -> None:
    made = await person.post("/users", data={"name": "bob", "role": "editor", "password": ""}, headers=trusted)
    assert made.status_code == 201
    password = soup_of(made).select("#password-once")[0].text
    assert await logs_in(person, "bob", password)
    assert password not in (await person.get("/users")).text
    assert state.registry.users.require("bob").role == "editor"
    typed = await person.post("/users", data={"name": "eve", "role": "viewer", "password": PASSWORD}, headers=trusted)
    assert PASSWORD not in typed.text
    assert await logs_in(person, "eve", PASSWORD)
    assert rows_of(await person.get("/users", params={"search": "edit"}, headers=HTMX)) == []
    assert rows_of(await person.get("/users", params={"search": "editor"}, headers=HTMX)) == ["bob"]


@pytest.mark.parametrize(
    ("fields", "field", "status"),
    [
        ({"name": "Bob"}, "name", 400),
        ({"name": ""}, "name", 400),
        ({"name": "admin"}, "name", 409),
        ({"password": "short"}, "password", 400),
        ({"role": "god"}, "role", 400),
    ],
)
async def test_a_wrong_user_is_refused_beside_the_field(
    person: httpx.AsyncClient, trusted: Headers, state: State, fields: dict[str, str], field: str, status: int
) -> None:
    good = {"name": "bob", "role": "viewer", "password": PASSWORD}
    answer = await person.post("/users", data=good | fields, headers=trusted)
    assert (answer.status_code, errors_of(answer).keys()) == (status, {field})
    assert 'value="short"' not in answer.text
    assert [user.name for user in state.registry.users.list()] == ["admin"]


async def test_role_password_and_removal(person: httpx.AsyncClient, trusted: Headers, state: State) -> None:
    state.registry.users.create("bob", PASSWORD, "viewer", actor="system")
    session, _ = await log_in_as(state, "bob", PASSWORD)
    changed = await person.post("/users/bob/role", data={"role": "admin"}, headers=trusted)
    assert changed.headers["location"] == "/users/bob?done=role"
    assert (await person.get("/keys", headers=session)).status_code == 200
    reset = await person.post("/users/bob/password", data={"password": ""}, headers=trusted)
    assert (await person.get("/keys", headers=session | {"accept": "*/*"})).status_code == 401
    assert await logs_in(person, "bob", soup_of(reset).select("#password-once")[0].text)
    weak = await person.post("/users/bob/password", data={"password": "short"}, headers=trusted)
    assert (weak.status_code, errors_of(weak).keys()) == (400, {"password"})
    gone = await person.post("/users/bob/remove", headers=trusted)
    assert gone.headers["location"] == "/users?done=remove"
    assert (await person.post("/users/bob/password", data={"password": PASSWORD}, headers=trusted)).status_code == 404
    assert [user.name for user in state.registry.users.list()] == ["admin"]


async def log_in_as(state: State, name: str, password: str) -> tuple[Headers, str]:
    cookie = state.sessions.log_in(name, password, "127.0.0.1")
    assert cookie is not None
    return {"cookie": f"loraplex_session={cookie}"}, cookie


async def test_the_last_admin_stays(person: httpx.AsyncClient, trusted: Headers, state: State) -> None:
    page = soup_of(await person.get("/users"))
    assert not page.select("form[action$='/remove']")
    less = await person.post("/users/admin/role", data={"role": "viewer"}, headers=trusted)
    assert (less.status_code, errors_of(less).keys()) == (409, {"role"})
    assert (await person.post("/users/admin/remove", headers=trusted)).status_code == 409
    assert state.registry.users.require("admin").role == "admin"


async def test_a_tenant_is_made_filled_limited_and_disabled(
    person: httpx.AsyncClient, trusted: Headers, state: State
) -> None:
    assert "Everything is in one tenant" in (await person.get("/tenants")).text
    made = await person.post("/tenants", data={"name": "acme", "tokens_per_day": "500"}, headers=trusted)
    assert made.headers["location"] == "/tenants/acme"
    assert "Nobody can log in yet" in (await person.get("/tenants/acme")).text
    user = {"name": "root", "role": "admin", "password": PASSWORD}
    invited = await person.post("/users", params={"tenant": "acme"}, data=user, headers=trusted)
    assert "acme/root" in invited.text
    session, _ = await log_in_as(state, "acme/root", PASSWORD)
    assert (await person.get("/users", headers=session)).status_code == 200
    assert (await person.get("/tenants", headers=session)).status_code == 403
    limited = await person.post("/tenants/acme", data={"max_concurrent": "3"}, headers=trusted)
    assert limited.headers["location"] == "/tenants/acme?done=change"
    assert state.registry.tenants.get("acme").quota == Quota(max_concurrent=3)
    row = BeautifulSoup((await person.get("/tenants", headers=HTMX)).text, "html.parser").select("tbody tr")[0]
    assert [cell.text for cell in row.select("td.number")] == ["0", "0", "1"]
    assert "3 concurrent" in row.text
    await person.post("/tenants/acme/disable", headers=trusted)
    assert (await person.get("/users", headers=session | {"accept": "*/*"})).status_code == 401
    await person.post("/tenants/acme/enable", headers=trusted)
    assert state.registry.tenants.get("acme").disabled_at is None


async def test_what_no_tenant_may_be_is_refused(person: httpx.AsyncClient, trusted: Headers, state: State) -> None:
    for fields, field, status in (
        ({"name": "Acme Inc"}, "name", 400),
        ({"name": "default"}, "name", 409),
        ({"name": "acme", "tokens_per_day": "much"}, "tokens_per_day", 400),
    ):
        answer = await person.post("/tenants", data=fields, headers=trusted)
        assert (answer.status_code, errors_of(answer).keys()) == (status, {field})
    assert (await person.post("/tenants/default", data={"max_concurrent": "no"}, headers=trusted)).status_code == 400
    assert (await person.post("/tenants/default/disable", headers=trusted)).status_code == 400
    assert (await person.post("/tenants/default/explode", headers=trusted)).status_code == 404
    assert (await person.get("/tenants/nobody")).status_code == 404
    assert [tenant.name for tenant in state.registry.tenants.list()] == ["default"]
    assert await logs_in(person, "admin", ADMIN_PASSWORD)


@pytest.mark.parametrize(("login", "tenant"), [("bob", "default"), ("acme/bob", "acme")])
async def test_everybody_changes_the_own_password(
    client: httpx.AsyncClient, state: State, login: str, tenant: str
) -> None:
    """A viewer, whom no page of users is open to."""
    state.registry.tenants.create("acme", actor="system")
    state.registry.users.create("bob", ADMIN_PASSWORD, "viewer", actor="system", tenant=tenant)
    (session, token), (elsewhere, _) = await log_in(state, login), await log_in(state, login)
    client.headers.clear()
    headers = {**HTML, **ORIGIN, **session, "x-csrf-token": token}
    page = soup_of(await client.get("/account", headers=headers))
    assert login in page.select("dd")[0].text and page.select('.side a[href="/account"]')[0].text == login
    wrong = {"current": "not this one", "password": PASSWORD}
    for fields, field in ((wrong, "current"), ({"current": ADMIN_PASSWORD, "password": "short"}, "password")):
        answer = await client.post("/account/password", data=fields, headers=headers)
        assert (answer.status_code, errors_of(answer).keys()) == (400, {field})
    good = {"current": ADMIN_PASSWORD, "password": PASSWORD}
    changed = await client.post("/account/password", data=good, headers=headers)
    assert (changed.status_code, changed.headers["location"]) == (303, "/account?done=password")
    assert (await client.get("/account", headers=HTML | elsewhere)).status_code == 303, "logged out elsewhere"
    new = {"cookie": changed.headers["set-cookie"].partition(";")[0]}
    assert "Password changed." in (await client.get("/account?done=password", headers=HTML | new)).text
    assert await logs_in(client, login, PASSWORD) and not await logs_in(client, login, ADMIN_PASSWORD)


async def test_a_key_has_no_account(client: httpx.AsyncClient, admin: Headers) -> None:
    for answer in (
        await client.get("/account", headers=HTML | admin),
        await client.post("/account/password", data={"current": "", "password": PASSWORD}, headers=HTML | admin),
    ):
        assert answer.status_code == 200 and "no password" in answer.text
