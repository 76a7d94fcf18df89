"""The audit log's page: found, paged, verified, downloaded; what was tampered with shows."""

import asyncio
import csv
import io
import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from bs4 import BeautifulSoup
from sqlalchemy import text

import loraplex.registry
import loraplex.web
from loraplex.registry.access.tenants import tenant_id
from loraplex.registry.audit import AuditFilter, Verdict, record
from loraplex.web.admin.audit.audit_rows import ACTIONS
from loraplex.web.audit.chain_check import FRESH_SECONDS, ChainCheck
from loraplex.web.state import State

from .conftest import ADMIN_PASSWORD
from .fake_engine import FakeEngine
from .test_access import key, log_in
from .test_pages import HTMX, first_data, login, person, trusted

__all__ = ["first_data", "login", "person", "trusted"]


@pytest.fixture(autouse=True)
def history(state: State) -> None:
    for number in range(3):
        prefix = state.registry.keys.create(f"=key {number}", ["inference"], actor="user:bob").key.prefix
    state.registry.keys.revoke(prefix, actor="user:Eve_1")
    state.registry.tenants.create("acme", actor="user:admin")


def actions(answer: httpx.Response) -> list[str]:
    return [code.text for code in BeautifulSoup(answer.text, "html.parser").select("td code")]


async def test_rows_are_found_by_who_what_and_when(person: httpx.AsyncClient) -> None:
    assert actions(await person.get("/audit"))[:3] == ["user.login", "key.revoke", "key.create"]
    today = datetime.now(UTC).date()
    for asked, found in (
        ({"actor": "user:bob"}, ["key.create"] * 3),
        ({"actor": "eve_"}, ["key.revoke"]),
        ({"actor": "eve%"}, []),
        ({"action": "REVOKE"}, ["key.revoke"]),
        ({"subject": "key:", "action": "revoke", "from": str(today), "to": str(today)}, ["key.revoke"]),
        ({"to": str(today - timedelta(days=1))}, []),
        ({"subject": "key:", "action": "revoke", "to": "9999-12-31"}, ["key.revoke"]),
        ({"from": str(today + timedelta(days=1))}, []),
    ):
        part = await person.get("/audit", params=asked, headers=HTMX)
        assert actions(part) == found, asked
        assert "<html" not in part.text
    assert "No matching rows" in part.text
    for wrong in ({"from": "today"}, {"actor": "\u0000"}):
        answer = await person.get("/audit", params=wrong, headers=HTMX)
        assert answer.status_code == 400
        assert BeautifulSoup(answer.text, "html.parser").select("#audit-rows [role=alert]")


async def test_wrong_filters_are_said_in_the_words_of_the_page(person: httpx.AsyncClient) -> None:
    for asked, words in (
        ({"from": "yesterday"}, "“From” must be a day such as"),
        ({"to": "2026-13-01"}, "“To” must be a day such as"),
        ({"actor": "a\0"}, "“Who” has a character that names cannot contain."),
    ):
        answer = await person.get("/audit", params=asked)
        soup = BeautifulSoup(answer.text, "html.parser")
        assert answer.status_code == 400 and soup.select("[role=alert]:not([hidden])")[0].text.startswith(words)


def test_suggestions_are_actions_that_are_written() -> None:
    folders = [Path(package.__file__ or "").parent for package in (loraplex.registry, loraplex.web)]
    files = (path for folder in folders for path in folder.rglob("*.py") if path.name != "audit_rows.py")
    sources = "".join(path.read_text() for path in files)
    written = [action for action in ACTIONS if f'"{action}"' not in sources]
    assert written == ["adapter.evict", "adapter.load"] and 'f"adapter.{action}"' in sources


async def test_pages_follow_one_another(person: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = actions(await person.get("/audit"))
    monkeypatch.setattr("loraplex.web.admin.audit.audit.PAGE_ROWS", 2)
    found, path = [], "/audit"
    for _ in range(20):
        answer = await person.get(path, headers=HTMX if found else {})
        found += actions(answer)
        more = BeautifulSoup(answer.text, "html.parser").select("a[hx-get]")
        if not more:
            break
        path = str(more[0]["href"])
    assert found == whole


async def test_the_chain_is_computed_and_a_changed_row_shows(
    person: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loraplex.web.audit.chain_check.FRESH_SECONDS", 0)
    assert "✓ Intact" in (await person.get("/audit/chain", headers=HTMX)).text
    assert ">altered<" not in (await person.get("/audit")).text
    row = next(entry.id for entry in state.registry.audit.entries() if entry.action == "key.revoke")
    with state.registry.database.write() as session:
        session.execute(text("UPDATE audit SET actor = 'user:nobody' WHERE id = :id"), {"id": row})
    chain = (await person.get("/audit/chain", headers=HTMX)).text
    assert f"Row {row} does not follow row" in chain
    assert (await person.get("/audit")).text.count(">altered<") == 1
    assert "their hashes do not match" in (await person.get(f"/audit/{row}", params={"everyone": "true"})).text


async def test_one_computes_the_chain_and_the_others_hear_what_it_finds(
    person: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, begun, may_end = [0.0], [0], threading.Event()
    verify = state.registry.audit.verify

    def slowly() -> Verdict:
        begun[0] += 1
        assert may_end.wait(60)
        return verify()

    state.chain = ChainCheck(slowly, lambda: now[0])
    asked = [asyncio.create_task(person.get("/audit/chain", headers=HTMX)) for _ in range(3)]
    asked += [asyncio.create_task(person.get("/api/v1/audit?verify=true")) for _ in range(3)]
    while not begun[0]:
        await asyncio.sleep(0.01)
    asked.pop(0).cancel()
    may_end.set()
    answers = await asyncio.gather(*asked)
    assert begun == [1] and {answer.status_code for answer in answers} == {200}
    assert {answer.json()["chain"]["intact"] for answer in answers[2:]} == {True}
    await person.get("/audit/chain", headers=HTMX)
    assert begun == [1], "a verdict is good for a while"
    now[0] += FRESH_SECONDS
    await person.get("/audit/chain", headers=HTMX)
    assert begun == [2]


async def test_the_api_filters_as_the_page_does(person: httpx.AsyncClient, state: State) -> None:
    whole = (await person.get("/api/v1/audit?limit=1000")).json()["data"]
    asked = {"actor": "BOB", "action": "key.", "subject": "key:", "from": "2026-01-01", "to": "2999-01-01"}
    found = (await person.get("/api/v1/audit", params=asked)).json()["data"]
    expected = [row for row in whole if "bob" in row["actor"] and "key." in row["action"]]
    assert found == expected and 0 < len(found) < len(whole)
    lines = (await person.get("/api/v1/audit/export", params=asked | {"format": "jsonl"})).text.splitlines()
    assert [json.loads(line) for line in lines] == expected
    table = await person.get("/api/v1/audit/export", params=asked)
    assert table.text == (await person.get("/audit/export", params=asked)).text
    assert table.headers["content-disposition"] == 'attachment; filename="audit-default.csv"'
    assert (await person.get("/api/v1/audit", params={"from": "2999-01-01"})).json()["data"] == []
    for field, value in (("from", "today"), ("to", "2026-13-01"), ("actor", "a\x00")):
        for path in ("/api/v1/audit", "/api/v1/audit/export"):
            refused = await person.get(path, params={field: value})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


async def test_keys_are_told_and_found_by_their_labels(person: httpx.AsyncClient, state: State) -> None:
    """In both columns; a tenant's admins do not learn of labels of other tenants."""
    headers = key(state, "admin", name="nightly deploy")
    assert (await person.post("/api/v1/keys", json={"name": "made"}, headers=headers)).status_code == 201
    asked = {"tenant": "acme", "name": "theirs"}
    assert (await person.post("/api/v1/keys", params=asked, json=asked, headers=headers)).status_code == 400
    made = await person.post("/api/v1/keys", params={"tenant": "acme"}, json={"name": "theirs"}, headers=headers)
    assert made.status_code == 201
    page = await person.get("/audit", params={"actor": "NIGHTLY"})
    assert actions(page) == ["key.create"] and "nightly deploy" in page.text
    assert len(actions(await person.get("/audit", params={"subject": "nightly"}))) == 1
    everybodys = await person.get("/audit", params={"actor": "nightly", "everyone": "true"})
    assert actions(everybodys) == ["key.create", "key.create"]
    rows = (await person.get("/api/v1/audit", params={"tenant": "acme", "actor": "nightly"})).json()["data"]
    assert [(row["actor_name"], row["subject"]) for row in rows] == [("nightly deploy", f"key:{made.json()['prefix']}")]
    theirs = key(state, "admin", tenant="acme")
    assert (await person.get("/api/v1/audit", params={"actor": "nightly"}, headers=theirs)).json()["data"] == []
    found = (await person.get("/api/v1/audit", headers=theirs)).json()["data"]
    assert {row["actor_name"] for row in found} == {None} and {row["hash"] for row in found} == {None}


async def test_a_tenants_rows_have_numbers_of_their_own(person: httpx.AsyncClient, state: State) -> None:
    """Ids, hashes and the length of the chain would tell how much others do."""
    theirs, other = key(state, "admin", tenant="acme"), state.registry.keys
    for _ in range(3):
        other.create("noise", ["inference"], actor="user:admin")
        answer = await person.post("/api/v1/keys", json={"name": "own"}, headers=theirs)
        assert answer.status_code == 201
    rows = (await person.get("/api/v1/audit", headers=theirs)).json()["data"]
    assert [row["id"] for row in rows] == [5, 4, 3, 2, 1]
    page = (await person.get("/api/v1/audit", params={"before": 4, "limit": 2}, headers=theirs)).json()["data"]
    assert page == rows[2:4]
    state.registry.users.create("carola", ADMIN_PASSWORD, "admin", actor="system", tenant="acme")
    session, _ = await log_in(state, "acme/carola")
    html = (await person.get("/audit", headers=session)).text
    assert "Verifying all rows" in html and "/audit/5" in html
    chain = (await person.get("/audit/chain", headers=session)).text
    assert "Intact" in chain and not any(digit in chain for digit in "0123456789")
    assert "own" in (await person.get("/audit/5", headers=session)).text
    head = state.registry.audit.head()
    assert (await person.get(f"/audit/{head}", headers=session)).status_code == 404
    assert state.registry.audit.verify().problem is None
    with state.registry.database.write() as db:
        db.execute(text("UPDATE audit SET number = 99 WHERE number = 5"))
    assert "original number" in (state.registry.audit.verify().problem or "")


async def test_logins_and_evictions_are_in_the_log(
    person: httpx.AsyncClient, trusted: dict[str, str], state: State, engine: FakeEngine
) -> None:
    for user, password, status in (("admin", "wrong", 401), ("nobody", "x", 401), ("admin", ADMIN_PASSWORD, 303)):
        answer = await person.post("/login", data={"user": user, "password": password}, headers=trusted)
        assert answer.status_code == status
    for path in ("/adapters/sql/load", "/cache/sql/evict", "/api/v1/adapters/sql/load", "/api/v1/adapters/sql/evict"):
        assert (await person.post(path, headers=trusted)).status_code < 400, path
    rows = [(row.action, row.actor, row.subject) for row in state.registry.audit.entries(6, tenant="default")]
    moves = [(f"adapter.{move}", "user:admin", "adapter:sql@1") for move in ("evict", "load", "evict", "load")]
    assert rows[:4] == moves
    assert rows[4:] == [("user.login", "user:admin", "user:admin"), ("user.login_failed", "user:admin", "user:admin")]
    [unknown] = state.registry.audit.search(AuditFilter(actor="unknown"))
    assert (unknown.tenant, unknown.action) == (None, "user.login_failed") and "nobody" not in str(unknown)
    assert state.registry.audit.entries(1, tenant="default")[0].detail == {}


async def test_a_long_log_is_verified_when_asked(person: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BeautifulSoup((await person.get("/audit")).text, "html.parser").select('#chain[hx-trigger="load"]')
    monkeypatch.setattr("loraplex.web.admin.audit.audit.QUICKLY_VERIFIED", 2)
    page = BeautifulSoup((await person.get("/audit")).text, "html.parser")
    assert not page.select("#chain[hx-get]")
    assert page.select("#chain button")[0].text == "Verify all rows"


async def test_one_row_is_told_in_full(person: httpx.AsyncClient, state: State) -> None:
    entry = state.registry.audit.entries(tenant="default")[1]
    page = await person.get(f"/audit/{entry.id}")
    assert entry.hash in page.text
    detail = json.loads(BeautifulSoup(page.text, "html.parser").select("main pre")[0].text)
    assert detail == entry.detail
    for absent in ("0", "99999", "x", "-1", "1" * 40):
        assert (await person.get(f"/audit/{absent}")).status_code == 404, absent


async def test_rows_of_other_tenants_lead_to_what_they_name(person: httpx.AsyncClient, state: State) -> None:
    created = state.registry.keys.create("theirs", ["inference"], actor="user:root", tenant="acme").key
    with state.registry.database.write() as session:
        record(session, "user:root", "adapter.add", "adapter:other@1", tenant_id=tenant_id(session, "acme"))
    for asked in ({"tenant": "acme"}, {"everyone": "true"}):
        page = BeautifulSoup((await person.get("/audit", params=asked)).text, "html.parser")
        places = {link.text: str(link["href"]) for link in page.select("td code + small a")}
        assert places[f"key:{created.prefix}"] == f"/keys/{created.prefix}?tenant=acme"
        assert (await person.get(places[f"key:{created.prefix}"])).status_code == 200
        assert places["adapter:other@1"] == "/adapters/other?tenant=acme", "the operator's own of this name is another"


async def test_files_have_every_row(person: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loraplex.web.api.audit_file.FIRST_BATCH", 1)
    monkeypatch.setattr("loraplex.web.api.audit_file.BATCH", 2)
    entries = state.registry.audit.entries(tenant="default")
    answer = await person.get("/audit/export")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(int(row["id"]), row["hash"]) for row in rows] == [(entry.id, entry.hash) for entry in entries]
    assert answer.headers["content-disposition"] == 'attachment; filename="audit-default.csv"'
    asked = {"format": "jsonl", "action": "create", "actor": "bob"}
    lines = (await person.get("/audit/export", params=asked)).text.splitlines()
    assert [json.loads(line)["detail"]["name"] for line in lines] == ["=key 2", "=key 1", "=key 0"]


async def test_everyones_rows_are_the_operators(
    person: httpx.AsyncClient, client: httpx.AsyncClient, state: State
) -> None:
    assert "tenant.create" not in actions(await person.get("/audit"))
    assert "tenant.create" in actions(await person.get("/audit", params={"everyone": "true"}))
    state.registry.users.create("root", "correct horse battery", "admin", actor="system", tenant="acme")
    session, _ = await log_in(state, "acme/root")
    assert actions(await client.get("/audit", headers=session)) == ["user.login", "user.create", "tenant.create"]
    for path in ("/audit", "/audit/export", "/audit/1"):
        assert (await client.get(path, params={"everyone": "true"}, headers=session)).status_code == 403
    assert "rows follow" not in (await client.get("/audit/chain", headers=session)).text
