"""Aliases over HTTP: Which version serves which callers, and what may change that."""

import asyncio
from typing import Any

import httpx
import pytest
from bs4 import BeautifulSoup

from loraplex.registry.adapters.routes import guard_of
from loraplex.web.state import State

from .fake_engine import FakeEngine, sentence_of
from .routed import ALIASES, PROD, VERSION, ask, digests, put
from .test_adapters_api import said, say

__all__ = ["digests"]


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
        ("PUT", PROD, {"weights": {"1": 100, "01": 50}}, 400, "weights"),
        ("PUT", PROD, {"weights": {"2": 50, "02": 40, "1": 60}}, 400, "weights"),
        ("PUT", PROD, {"weights": {"1": 100, "9": 0, "8": 1}}, 400, "weights"),
        ("PUT", PROD, {"weights": {"1": 50, "9": 50}}, 404, "name"),
        ("PUT", PROD, {}, 400, "version"),
        ("PUT", f"{ALIASES}/new", {"weights": {"1": 100}}, 400, "version"),
        ("POST", f"{PROD}/promote", {}, 400, "version"),
        ("POST", f"{PROD}/promote", {"version": 2}, 400, "version"),
        ("POST", f"{PROD}/rollback", None, 400, "alias"),
        ("POST", f"{ALIASES}/none/rollback", None, 404, "alias"),
        ("GET", f"{ALIASES}/none", None, 404, "alias"),
        ("DELETE", f"{ALIASES}/none", None, 404, "alias"),
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


async def test_weights_of_candidates_are_refused_by_what_was_typed(
    client: httpx.AsyncClient, digests: list[str]
) -> None:
    """The stable version has the rest, which nobody types."""
    await put(client, PROD, version=1)
    alone = "The weight of version 2 is 200; it must be from 0 to 100 per cent, and the weights of all candidates may"
    together = (
        "The weights of the candidates add up to 130 (60 for version 2, 70 for version 3); they are per cent and may"
    )
    for form, weights, words in (
        ({"candidate": "2", "percent": "200"}, {"1": -100, "2": 200}, alone),
        ({"weight-2": "60", "weight-3": "70"}, {"1": -30, "2": 60, "3": 70}, together),
    ):
        refused = await client.post("/adapters/sql/aliases/prod/weights", data={"stable": "1"} | form)
        assert refused.status_code == 400 and f"{words} add up to 100 at most." in refused.text
        error = await client.put(PROD, json={"version": 1, "weights": weights})
        assert (error.status_code, error.json()["error"]["param"]) == (400, "weights")
        assert error.json()["error"]["message"] == f"{words} add up to 100 at most."
    assert (await client.get(PROD)).json()["weights"] == {"1": 100}


async def test_the_page_adds_a_route_once_and_changes_none_by_that(
    client: httpx.AsyncClient, digests: list[str]
) -> None:
    form = {"alias": "prod", "version": "1"}
    added = await client.post("/adapters/sql/aliases", data=form)
    assert (added.status_code, added.headers["location"]) == (303, "/adapters/sql?done=route#aliases")
    again = await client.post("/adapters/sql/aliases", data=form | {"version": "2"})
    assert again.status_code == 412 and "points at version 1. Change it" in again.text
    assert (await client.get(PROD)).json()["weights"] == {"1": 100}
    for wrong in ({"alias": "7"}, {"alias": ""}, {"alias": "next", "version": "newest"}):
        assert (await client.post("/adapters/sql/aliases", data=form | wrong)).status_code == 400
    assert (await client.post("/adapters/sql/alias", data=form)).status_code == 404


async def test_what_the_name_means_is_not_loaded_over(client: httpx.AsyncClient, digests: list[str]) -> None:
    await put(client, f"{ALIASES}/default", version=1)
    order = {"lora_name": "sql", "lora_path": "/nowhere", "load_inplace": True}
    refused = await client.post("/v1/load_lora_adapter", json=order)
    assert refused.status_code == 400 and "The alias 'default' says which version" in refused.text
    assert (await say(client, "sql")).status_code == 200
