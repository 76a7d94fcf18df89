"""The requests page and the system page as plain HTTP: who is found, what is told, and what never is."""

import json
from collections import deque
from datetime import UTC, datetime

import httpx
import pytest
from bs4 import BeautifulSoup

from loraplex.web.state import State

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
    started = datetime.fromtimestamp(state.metrics.since, UTC).isoformat(timespec="seconds")
    assert page.select(since)[0]["datetime"] == started
    monkeypatch.setattr(state.metrics, "recent", deque(maxlen=2))
    state.metrics.recent.extend(finished(float(number), request_id=f"{number}") for number in range(3))
    part = await person.get("/requests", params={"search": "0", "status": "error"}, headers=HTMX)
    page = BeautifulSoup(part.text, "html.parser")
    assert page.select(since)[0]["datetime"] == "1970-01-01T00:00:01+00:00"
    assert "No failed request" in page.text


async def test_requests_are_narrowed_by_how_they_ended_and_by_tenant(person: httpx.AsyncClient, state: State) -> None:
    for status in ("stop", "length", "abort", "error"):
        state.metrics.recent.append(finished(1.0, request_id=status, status=status))
    state.metrics.recent.append(finished(2.0, request_id="strange", tenant="another"))
    for group, expected in (("done", ["length", "stop"]), ("abort", ["abort"]), ("error", ["error"])):
        assert ids(await person.get("/requests", params={"status": group})) == expected
    assert "strange" not in (await person.get("/requests")).text


async def test_only_the_newest_are_shown(
    person: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loraplex.web.admin.requests.MOST_ROWS", 2)
    state.metrics.recent.extend(finished(float(number), request_id=str(number)) for number in range(5))
    page = await person.get("/requests")
    assert ids(page) == ["4", "3"]
    assert "5 requests; showing the newest 2" in page.text


async def test_the_system_page_hides_secrets_and_marks_what_was_set(person: httpx.AsyncClient, state: State) -> None:
    secret = "postgresql+pg8000://me:very-secret-word@127.0.0.1/db"
    state.settings = state.settings.model_copy(update={"database_url": secret})
    text = (await person.get("/system")).text
    for hidden in ("very-secret-word", state.settings.admin_password_text, state.settings.api_key_text):
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
