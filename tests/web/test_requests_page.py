"""The requests page and the system page as plain HTTP: who is found, what is told, and what never is."""

import json
from datetime import UTC, datetime

import httpx
import pytest
from bs4 import BeautifulSoup

from loraplex.registry.access.quotas import Quota
from loraplex.web.observability.request_log import REFUSED, RequestLog
from loraplex.web.state import State

from .conftest import ADMIN_PASSWORD, KEY
from .fake_engine import LOAD_SECONDS, QUEUE_SECONDS, FakeEngine
from .test_access import key, log_in
from .test_dashboard_figures import finished
from .test_pages import HTMX, Headers, first_data, login, person, trusted

__all__ = ["first_data", "login", "person", "trusted"]

SECRET_PROMPT = "the-prompt-nobody-may-read"


def ids(answer: httpx.Response) -> list[str]:
    return [code.text for code in BeautifulSoup(answer.text, "html.parser").select("tbody code")]


async def test_a_request_is_found_by_its_id_and_its_prompt_is_nowhere(
    person: httpx.AsyncClient, trusted: Headers
) -> None:
    body = {"model": "sql", "prompt": SECRET_PROMPT, "max_tokens": 3}
    sent = await person.post("/v1/completions", json=body, headers={**trusted, "x-request-id": "find-me-1"})
    assert (sent.status_code, sent.headers["x-request-id"]) == (200, "find-me-1")
    await person.post("/v1/completions", json=body | {"model": "tiny"}, headers={**trusted, "x-request-id": "other"})
    page = await person.get("/requests")
    assert ids(page) == ["other", "find-me-1"]
    assert SECRET_PROMPT not in page.text
    found = await person.get("/requests", params={"search": "FIND-ME"}, headers=HTMX)
    assert ids(found) == ["find-me-1"]
    assert "<html" not in found.text
    row = BeautifulSoup(found.text, "html.parser").select("tbody tr")[0]
    assert row.select("a")[0]["href"] == "/adapters/sql"
    assert "ms" in row.get_text()
    assert ids(await person.get("/requests", params={"search": "tin"})) == ["other"]


async def test_of_a_request_that_is_not_kept_is_said_what_that_can_mean(
    person: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = "#request-rows time"
    page = BeautifulSoup((await person.get("/requests", params={"search": "req-unknown"})).text, "html.parser")
    assert "req-unknown" in page.select("#request-rows p")[0].text
    started = datetime.fromtimestamp(state.metrics.log.kept_since(None), UTC).isoformat(timespec="seconds")
    assert page.select(since)[0]["datetime"] == started
    monkeypatch.setattr(state.metrics, "log", RequestLog(0.0, most=2))
    for number in range(1, 4):
        state.metrics.log.add(finished(float(number), request_id=f"{number}"))
    part = await person.get("/requests", params={"search": "1", "status": "error"}, headers=HTMX)
    page = BeautifulSoup(part.text, "html.parser")
    assert page.select(since)[0]["datetime"] == "1970-01-01T00:00:01+00:00"
    assert "No failed request" in page.text


async def test_requests_are_narrowed_by_how_they_ended_and_by_tenant(person: httpx.AsyncClient, state: State) -> None:
    for at, status in enumerate(("stop", "length", "abort", "error", "refused")):
        state.metrics.log.add(finished(float(at), request_id=status, status=status))
    state.registry.tenants.create("another", actor="system")
    state.metrics.log.add(finished(9.0, request_id="strange", tenant="another"))
    groups = {"done": ["strange", "length", "stop"]} | {group: [group] for group in ("abort", "error", "refused")}
    for group, expected in groups.items():
        assert ids(await person.get("/requests", params={"status": group})) == expected
    state.registry.users.create("viewer", ADMIN_PASSWORD, "viewer", actor="system", tenant="another")
    session, _ = await log_in(state, "another/viewer")
    answer = await person.get("/requests", headers=session)
    assert ids(answer) == ["strange"]


async def test_each_says_by_whom_on_which_version_and_where_its_time_went(
    person: httpx.AsyncClient, state: State
) -> None:
    headers = {"authorization": key(state, "inference")["authorization"], "x-request-id": "timed"}
    body = {"model": "sql", "prompt": "a", "max_tokens": 3}
    assert (await person.post("/v1/completions", json=body, headers=headers)).status_code == 200
    [entry] = state.metrics.log.of("default")
    assert entry.phases is not None and entry.actor.startswith("key:") and entry.version == "1"
    assert (entry.phases.queue, entry.phases.load) == (pytest.approx(QUEUE_SECONDS), pytest.approx(LOAD_SECONDS))
    assert entry.phases.prefill >= 0 and entry.phases.decode > 0
    [row] = BeautifulSoup((await person.get("/requests")).text, "html.parser").select("tbody tr")
    words = row.get_text(" ", strip=True)
    for told in ("timed test", "sql version 1", "queue 1 ms", "load 2 ms", "prefill", "decode"):
        assert told in words, told


async def test_refusals_are_found_too(
    person: httpx.AsyncClient, client: httpx.AsyncClient, state: State, engine: FakeEngine
) -> None:
    """With what the client was told, once each; and of what ran and failed there is one line, not two."""
    good, limited = {"authorization": f"Bearer {KEY}"}, key(state, "inference")
    prefix = state.registry.keys.list()[0].prefix
    state.registry.keys.change(prefix, actor="system", quota=Quota(requests_per_minute=1))
    state.registry.snapshots.refresh()
    body = {"model": "sql", "prompt": "a", "max_tokens": 1}
    asked = (
        ("wrong-key", {"authorization": "Bearer nonsense"}, body, 401),
        ("no-model", good, body | {"model": "nobody"}, 404),
        ("no-body", good, {"prompt": 1}, 400),
        ("taken", limited, body, 200),
        ("too-many", limited, body, 429),
        ("streamed", limited, body | {"stream": True}, 429),
        ("too-long", good, body | {"max_tokens": 10_000}, 400),
    )
    for name, headers, sent, status in asked:
        answer = await client.post("/v1/completions", json=sent, headers={**headers, "x-request-id": name})
        assert answer.status_code == status, (name, answer.text)
    engine.fails = set(engine.registered)
    failed = await client.post("/v1/completions", json=body, headers={**good, "x-request-id": "failed"})
    assert failed.status_code == 500
    log = {entry.request_id: entry for entry in state.metrics.log.of(None)}
    assert len(log) == len(state.metrics.log.of(None)) == len(asked) + 1
    told = {name: (entry.status, entry.code) for name, entry in log.items()}
    assert told["failed"] == ("error", 0) and "step failed" in log["failed"].reason
    for name, _, sent, status in asked:
        assert told[name] == ((REFUSED, status) if status >= 400 else ("length", 0)), name
        assert log[name].model == ("" if name in ("wrong-key", "no-body") else sent["model"]), name
    assert "requests per minute" in log["too-many"].reason and log["too-many"].actor == f"key:{prefix}"
    assert log["wrong-key"].tenant == "" and log["no-model"].tenant == "default"
    page = await person.get("/requests", params={"status": REFUSED})
    assert ids(page) == ["too-long", "streamed", "too-many", "no-body", "no-model", "wrong-key"]
    assert "no valid key" in page.text and "requests per minute" in page.text
    state.registry.users.create("viewer", ADMIN_PASSWORD, "viewer", actor="system")
    session, _ = await log_in(state, "viewer")
    assert "wrong-key" not in (await person.get("/requests", headers=session)).text


async def test_the_operator_finds_the_slowest_of_all_or_of_one_tenant(person: httpx.AsyncClient, state: State) -> None:
    for tenant in ("acme", "rival"):
        state.registry.tenants.create(tenant, actor="system")
    state.registry.snapshots.refresh()
    for number, tenant in enumerate(("acme", "rival", "default", "acme")):
        failed = finished(float(number), request_id=f"{number}", tenant=tenant, status="error", duration=10.0 - number)
        state.metrics.log.add(failed)
    asked = {"status": "error", "order": "duration"}
    everybodys = await person.get("/requests", params=asked)
    assert ids(everybodys) == ["0", "1", "2", "3"]
    page = BeautifulSoup(everybodys.text, "html.parser")
    [link] = {str(one["href"]) for one in page.select("tbody a") if one.text == "acme"}
    assert ids(await person.get(link)) == ["0", "3"]
    assert page.select("tbody tr a")[1]["href"] == "/adapters/m?tenant=acme"
    assert page.select_one("th[aria-sort]").text.strip() == "Duration"  # type: ignore[union-attr]


def test_a_busy_tenant_pushes_out_its_own_requests_and_no_others() -> None:
    log = RequestLog(0.5, most=4)
    log.add(finished(1.0, tenant="quiet", request_id="kept"))
    for number in range(2, 30):
        log.add(finished(float(number), tenant="busy"))
    assert [one.request_id for one in log.of("quiet")] == ["kept"] and len(log.of("busy")) == 3
    assert log.kept_since("quiet") == 0.5, "what others do shows in nothing"
    assert (log.kept_since("busy"), log.kept_since(None)) == (26.0, 26.0)
    for number in range(30, 33):
        log.add(finished(float(number), tenant=f"new{number}"))
    assert len(log.of(None)) == 4 and [one.at for one in log.of(None)] == [32.0, 31.0, 30.0, 29.0]


async def test_only_the_newest_are_shown(
    person: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loraplex.web.admin.requests.requests.MOST_ROWS", 2)
    for number in range(5):
        state.metrics.log.add(finished(float(number), request_id=str(number)))
    page = await person.get("/requests")
    assert ids(page) == ["4", "3"]
    assert "5 requests; showing the newest 2" in page.text


async def test_the_system_page_hides_secrets_and_marks_what_was_set(person: httpx.AsyncClient, state: State) -> None:
    secret = "postgresql://me:very-secret-word@127.0.0.1/db"
    state.settings = state.settings.model_copy(update={"database_url": secret})
    text = (await person.get("/system")).text
    for hidden in ("very-secret-word", state.settings.admin_password_text, *state.settings.api_keys):
        assert hidden is not None
        assert hidden not in text
    rows = {row.select("code")[0].text: row for row in BeautifulSoup(text, "html.parser").select(".settings tbody tr")}
    assert rows.keys() == type(state.settings).model_fields.keys()
    assert rows["served_name"].select(".tag")[0].text == "flag"
    assert rows["max_num_seqs"].select(".tag")[0].text == "default"
    assert "Settings in force" in text
    cells = {name: [cell.get_text(strip=True) for cell in row.select("td")] for name, row in rows.items()}
    for name, value in {"certificate_timeout": "21,600 s", "hub_timeout": "1,800 s", "session_hours": "12 h"}.items():
        assert cells[name][1] == value
    assert cells["gpu_memory_utilization"][1] == "0.9"
    assert "`" not in text
    assert [one.text for one in rows["kv_cache_scales"].select("td:last-child code")] == ["loraplex calibrate-kv"]


async def test_the_charts_of_an_adapter_tell_its_own_traffic(person: httpx.AsyncClient, trusted: Headers) -> None:
    body = {"model": "sql", "prompt": "a", "max_tokens": 3}
    for model in ("sql", "sql", "tiny"):
        assert (await person.post("/v1/completions", json=body | {"model": model}, headers=trusted)).status_code == 200
    points = json.loads((await person.get("/adapters/sql/traffic")).text)
    assert (points["hours"]["requests"][-1], points["hours"]["tokens"][-1]) == (2, 6)
    assert len(points["requests"]["at"]) == len(points["requests"]["first_token_ms"]) == 2
    table = BeautifulSoup((await person.get("/adapters")).text, "html.parser").select("tbody tr")[0]
    assert "2" in [cell.text for cell in table.select("td.number")]
