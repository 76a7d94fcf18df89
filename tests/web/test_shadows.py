"""Shadows: copies of requests for a version that answers nobody."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from loraplex.web.state import State

from .conftest import served
from .fake_engine import FakeEngine
from .routed import PROD, VERSION, ask, digests, put, until
from .test_adapters_api import add

__all__ = ["digests"]


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
