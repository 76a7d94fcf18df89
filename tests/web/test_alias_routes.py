"""Aliases over HTTP: who is answered by which version, the guard that takes one back, and shadows."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from bs4 import BeautifulSoup

from loraplex.engine.client import RequestRejected
from loraplex.registry.routes import guard_of
from loraplex.web.percentile import percentile
from loraplex.web.route_metrics import MOST_LANES, RouteCollector
from loraplex.web.routing.tallies import Lane, Tallies
from loraplex.web.routing.watch import is_fault
from loraplex.web.state import State

from .conftest import served
from .fake_engine import FakeEngine, sentence_of
from .test_adapters_api import add, said, say

ALIASES = "/api/v1/adapters/sql/aliases"
PROD = f"{ALIASES}/prod"
VERSION = "x-loraplex-version"


@pytest_asyncio.fixture
async def digests(client: httpx.AsyncClient, admin: dict[str, str], adapter_folders: list[Path]) -> list[str]:
    """`sql` has two versions."""
    client.headers.update(admin)
    return [(await add(client, "sql", folder)).json()["version"]["digest"] for folder in adapter_folders]


async def ask(client: httpx.AsyncClient, model: str, user: str | None = None, **fields: Any) -> httpx.Response:
    body = {"model": model, "prompt": "hi", "max_tokens": 4, **({"user": user} if user else {}), **fields}
    return await client.post("/v1/completions", json=body)


async def put(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await client.put(path, json=body)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_canary_of_the_bare_name(client: httpx.AsyncClient, digests: list[str]) -> None:
    assert await said(client, "sql") == sentence_of(digests[1])
    adapter = await put(client, f"{ALIASES}/default", version=1, weights={"1": 50, "2": 50})
    assert (adapter["latest"], adapter["current"]) == (2, 1)
    seen = {}
    for user in map(str, range(20)):
        answers = [await ask(client, "sql", user) for _ in range(2)]
        versions = {answer.headers[VERSION] for answer in answers}
        assert len(versions) == 1 and {answer.json()["model"] for answer in answers} == {"sql"}
        seen[user] = versions.pop()
    assert set(seen.values()) == {"sql@1", "sql@2"}
    other = next(user for user, version in seen.items() if version == "sql@2")
    assert (await ask(client, "sql", safety_identifier=other)).headers[VERSION] == "sql@2"
    keys = {(await ask(client, "sql")).headers[VERSION] for _ in range(4)}
    assert len(keys) == 1, "without a user, the key counts"
    assert (await ask(client, "sql@latest")).headers[VERSION] == "sql@2"
    assert VERSION not in (await ask(client, "tiny")).headers
    streamed = await ask(client, "sql", other, stream=True)
    assert streamed.headers[VERSION] == "sql@2"
    sums = await ask(client, "tiny", other, adapters=[{"name": "sql"}])
    assert sums.headers[VERSION] == "sql@2"
    assert (await client.delete("/api/v1/adapters/sql@1")).json()["error"]["code"] == "version_in_use"


async def test_the_list_of_models_has_the_version_that_answers(client: httpx.AsyncClient, digests: list[str]) -> None:
    await put(client, f"{ALIASES}/default", version=1, weights={"1": 0, "2": 100})
    cards = {card["id"]: card["root"] for card in (await client.get("/v1/models")).json()["data"]}
    assert cards["sql"] == (await client.get("/v1/models/sql")).json()["root"] == digests[1]
    assert (await ask(client, "sql")).headers[VERSION] == "sql@2"


async def test_tokenize_is_routed_as_what_it_counts_for(
    client: httpx.AsyncClient, engine: FakeEngine, digests: list[str]
) -> None:
    """The versions' profiles make different prompts."""
    await put(client, "/api/v1/adapters/sql@2/profile", system_prompt="Answer in SQL.")
    await put(client, f"{ALIASES}/default", version=1, weights={"1": 50, "2": 50})
    seen = set()
    for who in ({}, *({"user": str(number)} for number in range(10))):
        body = {"model": "sql", "messages": [{"role": "user", "content": "hi"}], **who}
        counted = (await client.post("/tokenize", json=body)).json()["tokens"]
        answer = await client.post("/v1/chat/completions", json=body | {"max_tokens": 1})
        assert engine.requests[-1].prompt_token_ids == counted
        seen.add((answer.headers[VERSION], len(counted)))
    assert len(seen) == 2


async def test_promotion_rollback_and_the_figures(client: httpx.AsyncClient, digests: list[str]) -> None:
    await put(client, PROD, version=1, weights={"1": 0, "2": 100})
    assert (await ask(client, "sql@prod")).headers[VERSION] == "sql@2"
    route = (await client.get(PROD)).json()
    assert (route["version"], route["weights"]) == (1, {"1": 0, "2": 100})
    (candidate,) = [one for one in route["figures"]["versions"] if one["role"] == "candidate"]
    assert (candidate["version"], candidate["requests"], candidate["errors"]) == (2, 1, 0)
    assert candidate["p95_first_token_ms"] is not None
    promoted = (await client.post(f"{PROD}/promote")).json()["routes"]["prod"]
    assert (promoted["version"], promoted["previous"], promoted["weights"]) == (2, 1, {"2": 100})
    back = (await client.post(f"{PROD}/rollback")).json()
    assert back["aliases"] == {"prod": 1}
    assert (await client.post(f"{PROD}/rollback")).json()["routes"] == back["routes"], "asked again, it goes back once"
    assert (await client.post(f"{PROD}/rollback", json={"version": 1})).json()["routes"] == back["routes"]
    assert await said(client, "sql@prod") == sentence_of(digests[0])
    assert [one["alias"] for one in (await client.get(ALIASES)).json()["data"]] == ["prod"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("PUT", PROD, {"weights": {"1": 50, "2": 40}}, 400, "weights"),
        ("PUT", PROD, {"weights": {"one": 100}}, 400, "weights"),
        ("PUT", PROD, {"weights": {"1": 100, "9": 0, "8": 1}}, 400, "weights"),
        ("PUT", PROD, {"weights": {"1": 50, "9": 50}}, 404, "name"),
        ("PUT", PROD, {}, 400, "version"),
        ("PUT", f"{ALIASES}/new", {"weights": {"1": 100}}, 400, "version"),
        ("POST", f"{PROD}/promote", {}, 400, "version"),
        ("POST", f"{PROD}/promote", {"version": 2}, 400, "version"),
        ("POST", f"{PROD}/rollback", None, 400, "alias"),
        ("POST", f"{ALIASES}/none/rollback", None, 404, "alias"),
        ("GET", f"{ALIASES}/none", None, 404, "alias"),
        ("PUT", f"{PROD}/guard", {}, 400, "guard"),
        ("PUT", f"{PROD}/guard", {"max_error_rate": 1}, 400, "max_error_rate"),
        ("PUT", f"{PROD}/guard", {"max_errors": 1}, 400, "max_errors"),
        ("PUT", f"{PROD}/shadow", {"version": 2, "percent": 101}, 400, "percent"),
        ("PUT", f"{PROD}/shadow", {"version": 1, "percent": 1}, 400, "version"),
    ],
)
async def test_wrong_routes_are_refused_by_name(
    client: httpx.AsyncClient,
    digests: list[str],
    method: str,
    path: str,
    body: dict[str, Any] | None,
    status: int,
    param: str,
) -> None:
    await put(client, PROD, version=1)
    response = await client.request(method, path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param), response.text
    assert (await client.get(PROD)).json()["weights"] == {"1": 100}


async def test_a_change_of_a_route_that_was_changed_meanwhile(client: httpx.AsyncClient, digests: list[str]) -> None:
    await put(client, PROD, version=1)
    seen = (await client.get(PROD)).headers["etag"]
    await put(client, PROD, version=1, weights={"1": 90, "2": 10})
    changes: list[tuple[str, str, dict[str, Any] | None]] = [
        ("PUT", PROD, {"version": 2}),
        ("DELETE", PROD, None),
        ("POST", f"{PROD}/promote", None),
        ("POST", f"{PROD}/rollback", None),
        ("PUT", f"{PROD}/guard", {"max_error_rate": 0.1}),
        ("DELETE", f"{PROD}/guard", None),
        ("PUT", f"{PROD}/shadow", {"version": 2, "percent": 5}),
        ("DELETE", f"{PROD}/shadow", None),
    ]
    before = (await client.get(PROD)).json()
    for method, path, body in changes:
        refused = await client.request(method, path, json=body, headers={"if-match": seen})
        assert (refused.status_code, refused.json()["error"]["code"]) == (412, "route_changed"), (method, path)
    wrong = await client.post(f"{PROD}/rollback", headers={"if-match": before["updated_at"]})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "if-match")
    assert (await client.get(PROD)).json() == before
    now = {"if-match": (await client.get(PROD)).headers["etag"]}
    assert (await client.post(f"{PROD}/rollback", headers=now)).status_code == 200
    assert (await client.post(f"{PROD}/rollback", headers=now)).status_code == 412


async def test_what_a_route_needs_is_not_disabled(client: httpx.AsyncClient, digests: list[str]) -> None:
    await put(client, PROD, version=2)
    refused = await client.patch("/api/v1/adapters/sql@2", json={"enabled": False})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "version_in_use")
    assert "callers of sql@prod" in refused.text
    for action in ("sql@2/disable", "sql@1/current"):
        page = await client.post(f"/adapters/{action}", headers={"accept": "text/html"})
        assert page.status_code == 409 and "the callers of sql@prod" in page.text
    assert await said(client, "sql") == await said(client, "sql@prod") == sentence_of(digests[1])
    assert (await client.patch("/api/v1/adapters/sql@1", json={"enabled": False})).status_code == 200
    pointed = await client.put(PROD, json={"version": 1})
    assert (pointed.status_code, pointed.json()["error"]["code"]) == (400, "invalid_route")


@pytest.mark.parametrize(
    ("field", "typed"), [("min_requests", "inf"), ("min_requests", "20.7"), ("window_seconds", "nan")]
)
async def test_counts_that_are_typed_must_be_whole(
    client: httpx.AsyncClient, digests: list[str], field: str, typed: str
) -> None:
    await put(client, PROD, version=1)
    form = {"max_latency_ms": "5", field: typed}
    refused = await client.post("/adapters/sql/aliases/prod/guard", data=form)
    assert refused.status_code == 400 and "whole number" in refused.text
    assert (await client.get(PROD)).json()["guard"] is None
    saved = await client.post("/adapters/sql/aliases/prod/guard", data=form | {field: "30"})
    assert saved.status_code == 303 and (await client.get(PROD)).json()["guard"][field] == 30


async def test_a_page_that_is_older_than_what_the_guard_did_changes_nothing(
    client: httpx.AsyncClient, state: State, digests: list[str]
) -> None:
    await put(client, PROD, version=1, weights={"1": 90, "2": 10})
    guard = guard_of({"max_error_rate": 0.1})
    await put(client, f"{PROD}/guard", max_error_rate=0.1)

    async def seen() -> str:
        page = BeautifulSoup((await client.get("/adapters/sql")).text, "html.parser")
        (found,) = {str(field["value"]) for field in page.select('#aliases input[name="seen"]')}
        return found

    form = {"stable": "1", "weight-2": "20", "seen": await seen()}
    (candidate,) = (await asyncio.to_thread(state.registry.adapters.get, "sql")).routes["prod"].candidates
    trip = state.registry.adapters.routes.trip
    assert await asyncio.to_thread(trip, "sql", "prod", 2, candidate.since, "Slow.", {}, guard=guard)
    for action in ("weights", "rollback"):
        refused = await client.post(f"/adapters/sql/aliases/prod/{action}", data=form)
        assert refused.status_code == 412 and "guard" in refused.text
    route = (await client.get(PROD)).json()
    assert route["weights"] == {"1": 100} and route["trip"]["version"] == 2
    again = await client.post("/adapters/sql/aliases/prod/weights", data=form | {"seen": await seen()})
    assert again.status_code == 303
    assert (await client.get(PROD)).json()["weights"] == {"1": 80, "2": 20}


async def test_the_page_adds_a_route_once_and_changes_none_by_that(
    client: httpx.AsyncClient, digests: list[str]
) -> None:
    form = {"alias": "prod", "version": "1"}
    added = await client.post("/adapters/sql/aliases", data=form)
    assert (added.status_code, added.headers["location"]) == (303, "/adapters/sql?done=route#aliases")
    again = await client.post("/adapters/sql/aliases", data=form | {"version": "2"})
    assert again.status_code == 412 and "means version 1; change it" in again.text
    assert (await client.get(PROD)).json()["weights"] == {"1": 100}
    for wrong in ({"alias": "7"}, {"alias": ""}, {"alias": "next", "version": "newest"}):
        assert (await client.post("/adapters/sql/aliases", data=form | wrong)).status_code == 400
    assert (await client.post("/adapters/sql/alias", data=form)).status_code == 404


async def test_the_guard_takes_a_failing_candidate_out_for_good(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, digests: list[str]
) -> None:
    await put(client, PROD, version=1, weights={"1": 0, "2": 100})
    await put(client, f"{PROD}/guard", max_error_rate=0.1, min_requests=4)
    for _ in range(3):
        assert (await ask(client, "sql@prod", max_tokens=10**6)).status_code == 400
    engine.fails = {digests[1]}
    for _ in range(4):
        assert (await ask(client, "sql@prod")).status_code == 500
    await state.guard.look()
    assert (await ask(client, "sql@prod")).headers[VERSION] == "sql@1"
    route = (await client.get(PROD)).json()
    assert "failed 4 of 4 requests (100.0%)" in route["trip"]["reason"] and "allows 10.0%" in route["trip"]["reason"]
    assert (route["weights"], route["updated_by"]) == ({"1": 100}, "guard")
    entry = (await client.get("/api/v1/audit?limit=1")).json()["data"][0]
    assert (entry["actor"], entry["action"], entry["subject"]) == ("guard", "alias.trip", "adapter:sql@prod")
    overview = (await client.get("/")).text
    assert "sql@prod went back" in overview and "/adapters/sql#aliases" in overview
    engine.fails = set()
    await state.guard.look()
    assert (await client.get(PROD)).json()["weights"] == {"1": 100}, "it never puts one back"
    await put(client, PROD, version=1, weights={"1": 0, "2": 100})
    await state.guard.look()
    assert (await client.get(PROD)).json()["weights"]["2"] == 100, "a new share is judged by new requests"
    assert "sql@prod went back" not in (await client.get("/")).text


async def test_a_slow_candidate_loses_to_a_fast_stable_version(
    client: httpx.AsyncClient, state: State, digests: list[str]
) -> None:
    await put(client, PROD, version=1, weights={"1": 50, "2": 50})
    await put(client, f"{PROD}/guard", max_first_token_ratio=2, min_requests=5)
    (candidate,) = state.registry.snapshots.current.adapters["default"]["sql"].routes["prod"].candidates
    stable, slow = (Lane("default", "sql", "prod", 1), Lane("default", "sql", "prod", 2, candidate.since))
    for _ in range(5):
        state.tallies.note(slow, False, 0.25, 1.0, 4)
    await state.guard.look()
    assert (await client.get(PROD)).json()["weights"]["2"] == 50, "nothing to compare with yet"
    for _ in range(5):
        state.tallies.note(stable, False, 0.1, 1.0, 4)
    await state.guard.look()
    route = (await client.get(PROD)).json()
    assert route["weights"] == {"1": 100}
    assert "p95 time to first token of 250 ms" in route["trip"]["reason"]
    assert "2 times the stable version's 100 ms" in route["trip"]["reason"]


async def test_the_event_loop_runs_on_while_figures_are_taken(
    client: httpx.AsyncClient, state: State, digests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(client, PROD, version=1, weights={"1": 50, "2": 50})
    await put(client, f"{PROD}/guard", max_first_token_ms=1000, min_requests=1)
    (candidate,) = state.registry.snapshots.current.adapters["default"]["sql"].routes["prod"].candidates
    state.tallies.note(Lane("default", "sql", "prod", 2, candidate.since), False, 0.25, 1.0, 4)
    taken: list[bool] = []

    def waits(values: Sequence[float], share: float) -> float:
        """Done only when the loop has done something else meanwhile."""
        taken.append(moved.wait(5))
        return percentile(values, share)

    monkeypatch.setattr("loraplex.web.routing.tallies.percentile", waits)
    for path in ("", PROD, ALIASES, "/adapters/sql", "/adapters/sql/aliases"):
        moved = threading.Event()
        asyncio.get_running_loop().call_later(0.02, moved.set)
        if path:
            assert (await client.get(path)).status_code == 200
        else:
            await state.guard.look()
    assert len(taken) >= 5 and all(taken)


async def test_metrics_of_a_route_by_version(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, digests: list[str]
) -> None:
    engine.resident, engine.fails = set(digests), {digests[1]}
    await put(client, PROD, version=1, weights={"1": 0, "2": 100})
    for _ in range(3):
        await ask(client, "sql@prod")
    engine.fails = set()
    await ask(client, "sql@prod")
    text = (await client.get("/metrics")).text
    labels = 'role="candidate",route="sql@prod",version="2"'

    def value(name: str, more: str = "") -> float:
        found = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
        wanted = sorted(filter(None, [*labels.split(","), *more.split(",")]))
        (line,) = [one for one in found if sorted(one.partition("{")[2].partition("}")[0].split(",")) == wanted]
        return float(line.rpartition(" ")[2])

    assert value("loraplex_route_requests_total", 'outcome="error"') == 3
    assert value("loraplex_route_requests_total", 'outcome="ok"') == 1
    assert value("loraplex_route_latency_seconds_count") == 1
    assert value("loraplex_route_first_token_seconds_bucket", 'le="+Inf"') >= 1
    await client.delete(PROD)
    await state.guard.look()
    assert 'route="sql@prod"' not in (await client.get("/metrics")).text, "a route that is gone has no series"


async def test_series_of_routes_are_bounded() -> None:
    tallies = Tallies()
    for number in range(MOST_LANES + 50):
        tallies.note(Lane("default", "sql", f"alias-{number}", 1), False, 0.1, 1.0, 4)
    requests, *_ = RouteCollector(tallies).collect()
    assert len(requests.samples) == 2 * MOST_LANES


async def test_a_candidate_that_the_engine_refuses_is_the_candidates_fault(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, digests: list[str]
) -> None:
    await put(client, PROD, version=1, weights={"1": 0, "2": 100})
    engine.unloadable.add(digests[1])
    lanes = state.registry.snapshots.current.adapters["default"]["sql"].routes["prod"].candidates
    lane = Lane("default", "sql", "prod", 2, lanes[0].since)
    state.reconciler._registered.pop(digests[1])
    engine.registered.pop(digests[1])
    engine.refused.add(digests[1])
    assert (await ask(client, "sql@prod")).json()["error"]["code"] == "adapter_unavailable"
    assert state.tallies.figures(lane, 600).errors == 1


@pytest.mark.parametrize(("kind", "fault"), [("invalid", False), ("overloaded", False), ("internal", True)])
def test_whose_fault_it_is(kind: str, fault: bool) -> None:
    assert is_fault(RequestRejected(kind, "words")) is fault


async def test_a_shadow_is_counted_and_seen_by_nobody(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, digests: list[str]
) -> None:
    engine.resident = set(digests)
    await put(client, PROD, version=1)
    await put(client, f"{PROD}/shadow", version=2, percent=100)
    for stream in (False, True):
        answer = await ask(client, "sql@prod", temperature=0, stream=stream, max_tokens=40)
        assert answer.headers[VERSION] == "sql@1"
    (shadow,) = [one for one in await parts(client) if one["role"] == "shadow"]
    await until(lambda: not state.shadows._running)
    (shadow,) = [one for one in await parts(client) if one["role"] == "shadow"]
    assert (shadow["version"], shadow["requests"], shadow["compared"], shadow["equal"]) == (2, 2, 2, 0)
    copies = [request for request in engine.requests if request.adapters[0].digest == digests[1]]
    assert {request.priority for request in copies} == {2**31 - 1}
    assert {request.params.temperature for request in copies} == {0}
    assert len(state.metrics.recent) == 2, "the users' figures know nothing of it"
    await asyncio.to_thread(state.quotas.ledger.flush)
    rows = (await client.get("/api/v1/usage?by=key")).json()["data"]
    booked = {row["actor"].partition(":")[0]: row["requests"] for row in rows}
    assert booked == {"key": 2, "shadow": 2}
    text = (await client.get("/metrics")).text
    assert 'loraplex_shadow_requests_total{adapter="sql",outcome="ok"} 2.0' in text
    today = state.quotas.now().date().isoformat()
    state.quotas.note_day(today, {("default", "shadow"): 7, ("default", "key:x"): 5})
    assert state.quotas._of_day["default", ""] == 5


async def parts(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get(PROD)).json()["figures"]["versions"]
    return found


async def test_a_shadow_that_fails_harms_nobody(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, digests: list[str]
) -> None:
    engine.resident, engine.fails = set(digests), {digests[1]}
    await put(client, PROD, version=1)
    await put(client, f"{PROD}/shadow", version=2, percent=100)
    assert (await ask(client, "sql@prod")).status_code == 200
    await until(lambda: not state.shadows._running)
    (shadow,) = [one for one in await parts(client) if one["role"] == "shadow"]
    assert (shadow["requests"], shadow["errors"]) == (1, 1)


async def test_a_shadow_of_an_adapter_with_a_scale(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, digests: list[str]
) -> None:
    engine.resident = set(digests)
    await put(client, PROD, version=1)
    await put(client, f"{PROD}/shadow", version=2, percent=100)
    asked = await ask(client, "tiny", adapters=[{"name": "sql@prod", "scale": 0.5}], temperature=0)
    assert asked.headers[VERSION] == "sql@1"
    await until(lambda: not state.shadows._running)
    refs = [(ref.digest, ref.scale) for request in engine.requests for ref in request.adapters]
    assert refs == [(digests[0], 0.5), (digests[1], 0.5)]
    (shadow,) = [one for one in await parts(client) if one["role"] == "shadow"]
    assert (shadow["requests"], shadow["compared"]) == (1, 1)


@pytest.mark.parametrize(("temperature", "compared"), [(0, 1), (0.7, 0)])
async def test_answers_are_compared_where_the_profiles_make_them_greedy(
    client: httpx.AsyncClient,
    state: State,
    engine: FakeEngine,
    digests: list[str],
    temperature: float,
    compared: int,
) -> None:
    engine.resident = set(digests)
    await put(client, PROD, version=1)
    await put(client, f"{PROD}/shadow", version=2, percent=100)
    await put(client, "/api/v1/adapters/sql@1/profile", temperature=0)
    await put(client, "/api/v1/adapters/sql@2/profile", temperature=temperature)
    assert (await ask(client, "sql@prod")).status_code == 200
    await until(lambda: not state.shadows._running)
    assert [request.params.temperature for request in engine.requests] == [0, temperature]
    (shadow,) = [one for one in await parts(client) if one["role"] == "shadow"]
    assert (shadow["requests"], shadow["compared"]) == (1, compared)


async def test_a_shadow_gives_way(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, digests: list[str]
) -> None:
    await put(client, PROD, version=1)
    await put(client, f"{PROD}/shadow", version=2, percent=100)
    engine.resident, engine.waiting = set(digests), 1
    assert (await ask(client, "sql@prod")).status_code == 200
    assert [one["dropped"] for one in await parts(client) if one["role"] == "shadow"] == [1]
    engine.waiting, engine.delay = 0, 0.15
    assert (await ask(client, "sql@prod", max_tokens=8)).status_code == 200
    assert len(state.shadows._running) == 1
    engine.waiting = 1
    await until(lambda: not state.shadows._running)
    assert [one["dropped"] for one in await parts(client) if one["role"] == "shadow"] == [2]
    await until(lambda: len(engine.aborted) > 0)


async def test_copies_end_with_the_server(state: State, engine: FakeEngine, adapter_folders: list[Path]) -> None:
    async with served(state) as client:
        token = state.registry.keys.create("admin", ["admin"], actor="system").token
        state.registry.snapshots.refresh()
        client.headers["authorization"] = f"Bearer {token}"
        digests = [(await add(client, "sql", folder)).json()["version"]["digest"] for folder in adapter_folders]
        await put(client, PROD, version=1)
        await put(client, f"{PROD}/shadow", version=2, percent=100)
        engine.resident, engine.delay = set(digests), 0.5
        await ask(client, "sql@prod", max_tokens=1)
        assert len(state.shadows._running) == 1
        state.stopping.set()
        await until(lambda: not state.shadows._running)


async def test_what_the_name_means_is_not_loaded_over(client: httpx.AsyncClient, digests: list[str]) -> None:
    await put(client, f"{ALIASES}/default", version=1)
    order = {"lora_name": "sql", "lora_path": "/nowhere", "load_inplace": True}
    refused = await client.post("/v1/load_lora_adapter", json=order)
    assert refused.status_code == 400 and "The alias 'default' says which version" in refused.text
    assert (await say(client, "sql")).status_code == 200
