"""The pages of keys: made and shown once, wrong forms answered beside their fields, changed, revoked."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from bs4 import BeautifulSoup

from loraplex.registry.access.quotas import Quota
from loraplex.web.state import State

from .test_access import log_in
from .test_pages import HTMX, Headers, first_data, login, person, trusted

__all__ = ["first_data", "login", "person", "trusted"]

FORM = {"name": "billing", "scope_inference": "on", "expires": ""}


def soup_of(answer: httpx.Response) -> BeautifulSoup:
    return BeautifulSoup(answer.text, "html.parser")


def errors_of(answer: httpx.Response) -> dict[str, str]:
    return {str(one["id"]).removesuffix("-error"): one.text for one in soup_of(answer).select(".field-error")}


def shown(answer: httpx.Response) -> list[str]:
    return [row.text for row in soup_of(answer).select("#key-rows tbody td:first-child a")]


async def make(person: httpx.AsyncClient, trusted: Headers, **fields: str) -> str:
    """The token of a new key."""
    made = await person.post("/keys", data=FORM | fields, headers=trusted)
    assert made.status_code == 201, errors_of(made)
    return soup_of(made).select("#token")[0].text


def opens(token: str) -> Headers:
    return {"authorization": f"Bearer {token}", "cookie": "", "accept": "application/json"}


async def test_a_key_is_shown_once_works_and_is_revoked(person: httpx.AsyncClient, trusted: Headers) -> None:
    token = await make(person, trusted)
    page = await person.get("/keys")
    assert token not in page.text
    assert shown(page)[0] == "billing"
    assert (await person.get("/v1/models", headers=opens(token))).status_code == 200
    prefix = token.removeprefix("lp-").partition("_")[0]
    assert token not in (await person.get(f"/keys/{prefix}")).text
    revoked = await person.post(f"/keys/{prefix}/revoke", headers=trusted)
    assert (revoked.status_code, revoked.headers["location"]) == (303, "/keys?done=revoke")
    assert (await person.get("/v1/models", headers=opens(token))).status_code == 401
    assert "billing" not in shown(await person.get("/keys?done=revoke"))
    assert shown(await person.get("/keys", params={"show": "revoked"})) == ["billing"]
    closed = soup_of(await person.get(f"/keys/{prefix}"))
    assert not closed.select("main form")


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"name": " "}, "name", "Enter a label"),
        ({"name": "x" * 101}, "name", "1 to 100"),
        ({"name": "a\u202eb"}, "name", "printable"),
        ({"scope_inference": ""}, "scopes", "at least one"),
        ({"requests_per_minute": "0"}, "requests_per_minute", "at least 1"),
        ({"tokens_per_minute": "1.5"}, "tokens_per_minute", "whole number"),
        ({"max_concurrent": "-3"}, "max_concurrent", "whole number"),
        ({"tokens_per_day": "9" * 19}, "tokens_per_day", "whole number"),
        ({"expires": "day", "expires_day": "31.1.2027"}, "expires", "Enter a date"),
        ({"expires": "day", "expires_day": "2020-01-01"}, "expires", "not in the future"),
        ({"expires": "1000000"}, "expires", "Choose an expiry"),
        ({"adapters": "sql, \u0007"}, "adapters", "is not a valid model name"),
        ({"adapters": "sql", "scope_admin": "on"}, "adapters", "can use all models"),
    ],
)
async def test_a_wrong_form_says_so_beside_the_field(
    person: httpx.AsyncClient, trusted: Headers, state: State, fields: dict[str, str], field: str, words: str
) -> None:
    before = state.registry.keys.list()
    answer = await person.post("/keys", data=FORM | fields, headers=trusted)
    assert answer.status_code == 400
    errors = errors_of(answer)
    assert errors.keys() == {field}
    assert words in errors[field]
    assert state.registry.keys.list() == before
    typed = soup_of(answer).select("#name")[0]
    assert typed["value"] == (FORM | fields)["name"]
    marked = soup_of(answer).select('[aria-invalid="true"]')
    assert [one["aria-describedby"].split()[0] for one in marked] == ([] if field == "scopes" else [f"{field}-error"])


async def test_everything_that_a_form_says_is_kept(person: httpx.AsyncClient, trusted: Headers, state: State) -> None:
    limits = {"requests_per_minute": "60", "tokens_per_minute": "2000", "max_concurrent": "4", "tokens_per_day": "9000"}
    fields = limits | {"adapters": "sql,tiny\nlater", "expires": "30", "scope_adapters": "on"}
    made = await person.post("/keys", data=FORM | fields, headers=trusted)
    assert "There is no model later yet" in made.text
    key = state.registry.keys.list()[0]
    assert (key.scopes, key.adapters) == ({"inference", "adapters"}, {"sql", "tiny", "later"})
    assert key.quota == Quota(60, 2000, 4, 9000)
    assert key.expires_at is not None
    assert timedelta(days=29) < key.expires_at - datetime.now(UTC) < timedelta(days=31)
    assert key.created_by == "user:admin"


async def test_a_key_is_changed_and_what_was_left_stays_to_the_second(
    person: httpx.AsyncClient, trusted: Headers, state: State
) -> None:
    await make(person, trusted, adapters="sql", expires="30", tokens_per_day="10")
    key = state.registry.keys.list()[0]
    assert key.expires_at is not None
    form = {
        field["name"]: field.get("value", "")
        for field in soup_of(await person.get(f"/keys/{key.prefix}")).select("main form input[name]")
        if field["name"] != "csrf_token"
    }
    assert (form["adapters"], form["tokens_per_day"], form["expires_day"]) == (
        "sql",
        "10",
        f"{key.expires_at:%Y-%m-%d}",
    )
    changed = await person.post(
        f"/keys/{key.prefix}", data=form | {"expires": "day", "max_concurrent": "2"}, headers=trusted
    )
    assert changed.headers["location"] == f"/keys/{key.prefix}?done=change"
    after = state.registry.keys.get(key.prefix)
    assert (after.expires_at, after.adapters) == (key.expires_at, {"sql"})
    assert (after.quota.tokens_per_day, after.quota.max_concurrent) == (10, 2)
    await person.post(f"/keys/{key.prefix}", data={"expires": "", "adapters": ""}, headers=trusted)
    freed = state.registry.keys.get(key.prefix)
    assert (freed.expires_at, freed.adapters, freed.quota.is_open) == (None, None, True)
    wrong = await person.post(f"/keys/{key.prefix}", data={"max_concurrent": "many"}, headers=trusted)
    assert (wrong.status_code, errors_of(wrong).keys()) == (400, {"max_concurrent"})


async def test_use_of_the_day_is_a_bar(person: httpx.AsyncClient, trusted: Headers, state: State) -> None:
    token = await make(person, trusted, tokens_per_day="16")
    body = {"model": "tiny", "prompt": "a", "max_tokens": 3}
    assert (await person.post("/v1/completions", json=body, headers=opens(token))).status_code == 200
    row = soup_of(await person.get("/keys")).select("#key-rows tbody tr")[0]
    used = state.quotas.used_today("default", f"key:{state.registry.keys.list()[0].prefix}")
    assert used >= 4
    assert f"{used} of 16 tokens" in row.text
    assert row.select("td:nth-child(4) time")[0].text == "0 s ago"
    assert row.select("svg.bar rect")[0]["width"] == f"{round(100 * used / 16, 1)}%"


async def test_keys_are_found_by_label_prefix_and_state(
    person: httpx.AsyncClient, trusted: Headers, state: State
) -> None:
    keys, past = state.registry.keys, datetime.now(UTC) - timedelta(days=1)
    for name, expires_at in (("CI upload", None), ("notebook", past)):
        prefix = keys.create(name, ["inference"], actor="system", expires_at=expires_at).key.prefix
    assert shown(await person.get("/keys", params={"search": "ci UP"}, headers=HTMX)) == ["CI upload"]
    assert shown(await person.get("/keys", params={"search": f"lp-{prefix[:6]}"})) == ["notebook"]
    assert shown(await person.get("/keys", params={"show": "expired"})) == ["notebook"]
    part = await person.get("/keys", params={"search": "nothing of the kind"}, headers=HTMX)
    assert "No key matches" in part.text
    assert "<html" not in part.text


async def test_keys_are_the_tenants_own_and_the_operator_says_whose(
    person: httpx.AsyncClient, trusted: Headers, state: State
) -> None:
    state.registry.tenants.create("acme", actor="system")
    state.registry.snapshots.refresh()
    made = await person.post("/keys", params={"tenant": "acme"}, data=FORM | {"name": "theirs"}, headers=trusted)
    assert made.status_code == 201
    token = soup_of(made).select("#token")[0].text
    assert "theirs" not in shown(await person.get("/keys"))
    there = await person.get("/keys", params={"tenant": "acme"})
    assert shown(there) == ["theirs"]
    assert "Viewing tenant" in there.text
    link = soup_of(there).select("#key-rows tbody a")[0]["href"]
    assert (await person.get(str(link))).status_code == 200
    assert (await person.get(str(link).partition("?")[0])).status_code == 404
    assert (await person.get("/v1/models", headers=opens(token))).status_code == 200
    assert state.registry.audit.entries(tenant="acme")[0].actor == "default/user:admin"


async def test_a_viewer_finds_no_way_to_the_keys(client: httpx.AsyncClient, state: State) -> None:
    state.registry.users.create("vera", "correct horse battery", "viewer", actor="system")
    session, _ = await log_in(state, "vera")
    client.headers.pop("authorization")
    overview = await client.get("/", headers=session | {"accept": "text/html"})
    links = {str(link["href"]) for link in soup_of(overview).select("nav a")}
    assert links == {"/", "/adapters", "/batches", "/cache", "/requests", "/usage"}
    assert {one["data-path"] for one in soup_of(overview).select("#keys [data-path]")} == links
    refused = await client.get("/keys", headers=session | {"accept": "text/html"})
    assert refused.status_code == 403
    assert soup_of(refused).select("form[action='/logout'] [name=csrf_token]")[0]["value"]
