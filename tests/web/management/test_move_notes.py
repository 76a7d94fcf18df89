"""No click and no upload moves callers without saying whom."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from bs4 import BeautifulSoup

from loraplex.web.routing.callers import FEW, MOST, RecentCallers
from loraplex.web.routing.tallies import LATEST, Lane, Tallies
from loraplex.web.state import State

from ..conftest import KEY
from ..fake_engine import FakeEngine, sentence_of
from ..routed import ALIASES, PROD, VERSION, ask, digests, put
from ..test_access import ORIGIN, log_in
from ..test_adapters_api import add, said

__all__ = ["digests"]

Headers = dict[str, str]


async def asked(client: httpx.AsyncClient, state: State, count: int = 3) -> None:
    """So many requests for `sql`, in the ledger."""
    for _ in range(count):
        assert (await ask(client, "sql")).status_code == 200
    await asyncio.to_thread(state.quotas.ledger.flush)


@contextmanager
def as_person(client: httpx.AsyncClient) -> Iterator[None]:
    """Without the key, which would count before a session."""
    key = client.headers.pop("authorization")
    yield
    client.headers["authorization"] = key


async def page_of(client: httpx.AsyncClient, state: State, path: str = "/adapters/sql") -> BeautifulSoup:
    headers, _ = await log_in(state)
    with as_person(client):
        return BeautifulSoup((await client.get(path, headers=headers)).text, "html.parser")


async def press(
    client: httpx.AsyncClient, state: State, path: str, fields: dict[str, str] | None = None
) -> httpx.Response:
    headers, token = await log_in(state)
    accept = {"accept": "text/html", **headers, **ORIGIN}
    with as_person(client):
        return await client.post(path, data={"csrf_token": token, **(fields or {})}, headers=accept)


def question_of(soup: BeautifulSoup, heading: str) -> str:
    """The words of a dialog."""
    [form] = soup.select(f'form[data-confirm="{heading}"]')
    return str(form["data-words"])


async def test_a_share_by_request_holds_for_one_caller(client: httpx.AsyncClient, digests: list[str]) -> None:
    """A candidate of 10 % by caller took 15 of 15 requests of one key, or none."""
    weights = {"1": 50, "2": 50}
    adapter = await put(client, f"{ALIASES}/default", version=1, weights=weights, share_by="request")
    assert adapter["routes"]["default"]["share_by"] == "request"
    versions = [(await ask(client, "sql")).headers[VERSION] for _ in range(40)]
    assert 5 <= versions.count("sql@2") <= 35
    client.headers["x-request-id"] = "the-same"
    assert len({(await ask(client, "sql")).headers[VERSION] for _ in range(5)}) == 1, "the id decides"
    del client.headers["x-request-id"]
    route = (await client.get(f"{ALIASES}/default")).json()
    stable, candidate = route["figures"]["versions"]
    assert candidate["percent"] == 50
    assert stable["actual_percent"] + candidate["actual_percent"] == pytest.approx(100)
    counted = candidate["requests"] / (stable["requests"] + candidate["requests"])
    assert candidate["actual_percent"] == pytest.approx(100 * counted, abs=0.1)
    assert route["figures"]["warning"] is None


async def test_a_share_by_few_callers_is_warned_of(client: httpx.AsyncClient, state: State, digests: list[str]) -> None:
    await asked(client, state)
    answer = await put(client, f"{ALIASES}/default", version=1, weights={"1": 90, "2": 10})
    assert answer["message"].endswith("Share by request instead.") and "Only 1 caller asked" in answer["message"]
    figures = (await client.get(f"{ALIASES}/default")).json()["figures"]
    assert (figures["callers_last_day"], figures["warning"][:18]) == (1, "Only 1 caller aske")
    section = (await page_of(client, state)).select_one("#aliases")
    assert section and "Only 1 caller asked" in section.get_text()
    for user in range(FEW):
        await ask(client, "sql", f"user {user}")
    figures = (await client.get(f"{ALIASES}/default")).json()["figures"]
    assert (figures["callers_last_day"], figures["warning"]) == (FEW + 1, None), "end users count"


def test_callers_are_counted_for_a_day_and_up_to_a_bound() -> None:
    now = [0.0]
    callers = RecentCallers(lambda: now[0])
    for number in range(2 * MOST):
        callers.note("t", "sql", str(number % (MOST + 5)))
    assert callers.count("t", "sql") == MOST
    now[0] = 86_000
    callers.note("t", "sql", "late")
    now[0] = 90_000
    assert (callers.count("t", "sql"), callers.count("t", "json")) == (1, 0)


def test_shares_are_compared_over_the_same_time() -> None:
    """Of a busy version the oldest requests are forgotten; those of the others must not count alone."""
    now = [0.0]
    tallies = Tallies(lambda: now[0])
    busy, other = Lane("t", "sql", "default", 1), Lane("t", "sql", "default", 2)
    for number in range(2 * LATEST):
        now[0] += 1
        tallies.note(busy, False, None, 0.1, 1)
        if number % 10 == 0:
            tallies.note(other, False, None, 0.1, 1)
    assert list(tallies.counts([busy, other], 10 * LATEST)) == [LATEST, LATEST // 10]
    assert list(tallies.counts([busy, other], 100)) == [101, 10]


async def test_an_upload_says_whom_it_moves(
    client: httpx.AsyncClient, admin: Headers, state: State, adapter_folders: list[Path]
) -> None:
    client.headers.update(admin)
    first = (await add(client, "sql", adapter_folders[0])).json()
    assert (first["share"], first["moves"]) == (100, [])
    assert first["message"] == "Requests for sql get version 1 from now on."
    await asked(client, state)
    second = (await add(client, "sql", adapter_folders[1])).json()
    [move] = second["moves"]
    assert (move["model"], move["from"], move["to"]) == ("sql", {"1": 100}, {"2": 100})
    assert (move["last_day"]["requests"], move["last_day"]["callers"]) == (3, 1)
    [caller] = move["last_day"]["top_callers"]
    assert caller["actor"].startswith("key:") and caller["requests"] == 3
    assert "go from version 1 to version 2. Version 1 had 3 requests of 1 caller in the last day" in second["message"]
    assert caller["name"] in second["message"] and not caller["name"].startswith("lp-")


async def test_an_upload_below_a_route_says_that_callers_stay(
    client: httpx.AsyncClient, admin: Headers, state: State, adapter_folders: list[Path]
) -> None:
    client.headers.update(admin)
    await add(client, "sql", adapter_folders[0])
    await put(client, f"{ALIASES}/default", version=1)
    added = (await add(client, "sql", adapter_folders[1])).json()
    assert added["share"] == 0 and [move["model"] for move in added["moves"]] == ["sql@latest"]
    assert added["message"].startswith("Requests for sql still get version 1. Ask for sql@2 to use this one.")


@pytest.mark.parametrize(
    ("fields", "share", "route"),
    [
        ({"activate": "inactive"}, 0, {"1": 100}),
        ({"activate": "share", "percent": "25", "share_by": "request"}, 25, {"1": 75, "2": 25}),
        ({"activate": "live"}, 100, None),
    ],
)
async def test_the_form_asks_who_gets_a_new_version(
    client: httpx.AsyncClient,
    admin: Headers,
    state: State,
    adapter_folders: list[Path],
    fields: dict[str, str],
    share: int,
    route: dict[str, int] | None,
) -> None:
    client.headers.update(admin)
    first = (await add(client, "sql", adapter_folders[0])).json()["version"]["digest"]
    await asked(client, state)
    digests: dict[str, str] = json.loads((await add(client, "other", adapter_folders[1])).request.content)
    new = BeautifulSoup((await press(client, state, "/adapters/new/check", digests)).text, "html.parser")
    assert not new.select("[name=activate]"), "nobody asks for it yet"
    report = BeautifulSoup((await press(client, state, "/adapters/sql/check", digests)).text, "html.parser")
    assert "3 requests of 1 caller in the last day" in report.get_text()
    assert [radio["value"] for radio in report.select("[name=activate][checked]")] == ["inactive"]
    done = BeautifulSoup((await press(client, state, "/adapters/sql/versions", digests | fields)).text, "html.parser")
    text = " ".join(done.get_text().split())
    adapter = (await client.get("/api/v1/adapters/sql")).json()
    assert (adapter["routes"].get("default") or {"weights": None})["weights"] == route
    if share == 100:
        assert "Requests for sql get version 2 from now on. Requests for sql go from version 1 to version 2." in text
    elif share:
        assert "Version 2 gets 25 % of requests for sql, version 1 the others." in text
    else:
        assert "Requests for sql still get version 1." in text and "served from now on" not in text
        assert await said(client, "sql") == sentence_of(first)
        [link] = done.select("a.primary")
        assert link["href"] == "/playground?model=sql%402"


async def test_the_api_takes_whom_a_version_answers(
    client: httpx.AsyncClient, admin: Headers, adapter_folders: list[Path]
) -> None:
    client.headers.update(admin)
    await add(client, "sql", adapter_folders[0])
    sent = json.loads((await add(client, "other", adapter_folders[1])).request.content)
    path = "/api/v1/adapters/sql/versions"
    wrong = await client.post(path, json=sent | {"activate": "share", "percent": 100})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "percent")
    answer = (await client.post(path, json=sent | {"activate": "share", "percent": 30})).json()
    assert (answer["share"], answer["moves"][0]["to"]) == (30, {"1": 70, "2": 30})
    again = await client.post(path, json=sent | {"activate": "live"})
    assert (again.status_code, again.json()["share"]) == (200, 100)


async def test_dialogs_say_whom_a_click_moves(client: httpx.AsyncClient, state: State, digests: list[str]) -> None:
    await put(client, f"{ALIASES}/default", version=1, weights={"1": 90, "2": 10}, share_by="request")
    await put(client, PROD, version=1)
    for version in ("sql@1", "sql@1", "sql@2"):
        await ask(client, version)
    await asyncio.to_thread(state.quotas.ledger.flush)
    soup = await page_of(client, state)
    promote = question_of(soup, "Promote version 2 of sql?")
    assert promote.startswith(
        "Requests for sql go from version 1 (90 % of requests) and version 2 (10 % of requests) to version 2. "
        "Version 1 had 2 requests of 1 caller in the last day ("
    )
    unpin = question_of(soup, "Stop pinning the default version of sql?")
    assert "Requests for sql go from version 1 (90 % of requests)" in unpin and "to version 2." in unpin
    assert "Requests for sql@prod fail. Version 1 had 2 requests" in question_of(soup, "Remove sql@prod?")
    assert "sql had 3 requests of 1 caller" in question_of(soup, "Disable sql?")
    assert "3 requests of 1 caller" in question_of(soup, "Delete sql?")


async def test_enabling_and_adding_a_route_say_whom_they_move(
    client: httpx.AsyncClient, state: State, digests: list[str]
) -> None:
    soup = await page_of(client, state)
    words = {str(one.get_text()): one["data-words"] for one in soup.select("#new-stable option")}
    assert words["2"] == "", "it is what the name means"
    assert "With the alias 'default': Requests for sql go from version 2 to version 1." in words["1"]
    await client.patch("/api/v1/adapters/sql@2", json={"enabled": False})
    question = question_of(await page_of(client, state), "Enable version 2?")
    assert question.startswith("Requests for sql go from version 1 to version 2.")


async def test_removing_the_default_route_says_whom_it_moves(
    client: httpx.AsyncClient, state: State, digests: list[str]
) -> None:
    await put(client, f"{ALIASES}/default", version=1)
    await asked(client, state)
    removed = (await client.delete(f"{ALIASES}/default")).json()
    [move] = removed["moves"]
    assert (move["model"], move["from"], move["to"]) == ("sql", {"1": 100}, {"2": 100})
    assert removed["message"].startswith("Requests for sql go from version 1 to version 2. Version 1 had 3 requests")


async def test_an_undo_over_the_api(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, digests: list[str]
) -> None:
    await put(client, f"{ALIASES}/default", version=1)
    await asked(client, state)
    await client.put("/api/v1/adapters/sql/aliases/prod", json={"version": 1})
    assert (await client.delete("/api/v1/adapters/sql")).status_code == 204
    assert not engine.registered
    back = await client.post("/api/v1/adapters/sql/undo")
    assert back.json()["aliases"] == {"default": 1, "prod": 1}
    assert await said(client, "sql") == sentence_of(digests[0])
    assert state.metrics.hours.requests("default", "sql") == 4, "and what was counted of it is known"
    refused = await client.post("/api/v1/adapters/sql/undo")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "undo_refused")


async def test_the_bar_undoes_ones_own_change_from_any_page(
    client: httpx.AsyncClient, state: State, digests: list[str]
) -> None:
    await put(client, f"{ALIASES}/default", version=1, weights={"1": 90, "2": 10})
    assert not (await page_of(client, state, "/")).select("#undo"), "it was a key's"
    assert (await press(client, state, "/adapters/sql/aliases/default/promote")).status_code == 303
    for path in ("/adapters/sql", "/", "/usage"):
        [bar] = (await page_of(client, state, path)).select("#undo")
        assert "The candidate of sql was promoted." in bar.get_text() and int(str(bar["data-seconds"])) > 30
    change = str(bar.select("[name=change]")[0]["value"])
    await put(client, PROD, version=1)
    refused = await press(client, state, "/adapters/sql/undo", {"change": change})
    assert refused.status_code == 409 and "changed again since" in refused.text
    assert (await client.get(f"{ALIASES}/default")).json()["version"] == 2
    await press(client, state, "/adapters/sql/disable")
    [bar] = (await page_of(client, state, "/usage")).select("#undo")
    change = str(bar.select("[name=change]")[0]["value"])
    assert (
        (await press(client, state, str(bar["action"]), {"change": change})).headers["location"].endswith("?done=undo")
    )
    assert (await client.get("/api/v1/adapters/sql")).json()["enabled"]
    assert not (await page_of(client, state)).select("#undo")


async def test_a_wrong_confirmation_keeps_the_form(client: httpx.AsyncClient, state: State, digests: list[str]) -> None:
    answer = await press(client, state, "/adapters/sql/delete", {"confirm": "sqk"})
    soup = BeautifulSoup(answer.text, "html.parser")
    [field] = soup.select("#confirm")
    assert (answer.status_code, field["value"], field["aria-invalid"]) == (400, "sqk", "true")
    [error] = soup.select(f"#{str(field['aria-describedby']).strip()}")
    assert error.get_text() == "Nothing was deleted. To confirm, type the adapter's name: sql"
    assert soup.select("#versions"), "it is the adapter's page"
    assert (await press(client, state, "/adapters/sql/delete", {"confirm": "sql"})).status_code == 303
    assert (await client.get("/api/v1/adapters/sql")).status_code == 404


async def test_labels_of_keys_are_told_to_those_who_may_see_them(
    client: httpx.AsyncClient, state: State, digests: list[str]
) -> None:
    await asked(client, state)
    token = state.registry.keys.create("pipeline", ["adapters"], actor="system").token
    state.registry.snapshots.refresh()
    client.headers["authorization"] = f"Bearer {token}"
    answer = await put(client, f"{ALIASES}/default", version=1)
    [caller] = answer["moves"][0]["last_day"]["top_callers"]
    assert caller["name"].startswith("lp-") and KEY not in str(answer)
