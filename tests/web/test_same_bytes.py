"""Two adapters of equal bytes share one entry in the engine. Each name still tells its own use."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from bs4 import BeautifulSoup

from loraplex.web.access.caller import Caller
from loraplex.web.management.engine_view import status_for
from loraplex.web.state import State

from .conftest import served
from .fake_engine import FakeEngine
from .test_access import key, log_in
from .test_adapters_api import add

BODY = {"prompt": "hi", "max_tokens": 40, "ignore_eos": True}


async def on_the_page(client: httpx.AsyncClient, state: State) -> dict[str, str]:
    """Name -> its column Last used, in the page's order by last use."""
    session, _ = await log_in(state)
    request = client.build_request("GET", "/adapters?order=used", headers=session | {"accept": "text/html"})
    del request.headers["authorization"]
    answer = await client.send(request)
    rows = BeautifulSoup(answer.text, "html.parser").select("tbody tr")
    return {row.select("a")[0].text.strip(): row.select("td.used")[0].text.strip() for row in rows}


async def in_the_api(client: httpx.AsyncClient, headers: dict[str, str]) -> dict[str, dict[str, Any]]:
    listed = (await client.get("/api/v1/adapters", headers=headers)).json()["data"]
    assert len({adapter["versions"][0]["digest"] for adapter in listed}) == 1, "they have the same bytes"
    return {adapter["name"]: adapter for adapter in listed}


def in_the_engine(state: State, tenant: str) -> int:
    """Requests that run with the adapter, as the tenant sees the engine."""
    status = status_for(state, Caller(tenant, "user:somebody", frozenset()))
    assert status is not None
    [adapter] = status.adapters
    return adapter.running


@pytest.fixture
def twins(adapter_folders: list[Path]) -> Path:
    return adapter_folders[0]


async def test_each_name_has_its_own_last_use(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, admin: dict[str, str], twins: Path
) -> None:
    client.headers.update(admin)
    for name in ("a-twin", "sql"):
        assert (await add(client, name, twins)).status_code == 201
    engine.delay = 0.02
    asked = asyncio.create_task(client.post("/v1/completions", json=BODY | {"model": "sql"}))
    while not engine.running:
        await asyncio.sleep(0.01)
    assert await on_the_page(client, state) == {"sql": "1 running", "a-twin": "not used yet"}
    told = await in_the_api(client, admin)
    assert {name: one["versions"][0]["running"] for name, one in told.items()} == {"sql": 1, "a-twin": 0}
    assert (await asked).status_code == 200
    page = await on_the_page(client, state)
    assert list(page) == ["sql", "a-twin"] and page["sql"].startswith("idle") and page["a-twin"] == "not used yet"
    told = await in_the_api(client, admin)
    used = datetime.fromisoformat(told["sql"]["last_used_at"])
    assert timedelta(0) <= datetime.now(UTC) - used < timedelta(minutes=1)
    assert told["a-twin"]["last_used_at"] is None


async def test_a_tenant_does_not_see_that_another_uses_the_same_bytes(
    state: State, engine: FakeEngine, twins: Path
) -> None:
    for tenant in ("acme", "rival"):
        state.registry.tenants.create(tenant, actor="system")
    async with served(state) as client:
        keys = {tenant: key(state, "admin", tenant=tenant) for tenant in ("acme", "rival")}
        for headers in keys.values():
            client.headers.update(headers)
            assert (await add(client, "sql", twins)).status_code == 201
        engine.delay = 0.02
        asked = asyncio.create_task(client.post("/v1/completions", json=BODY | {"model": "sql"}, headers=keys["acme"]))
        while not engine.running:
            await asyncio.sleep(0.01)
        running = {tenant: (await in_the_api(client, keys[tenant]))["sql"]["versions"][0]["running"] for tenant in keys}
        assert running == {"acme": 1, "rival": 0}
        assert {tenant: in_the_engine(state, tenant) for tenant in keys} == {"acme": 1, "rival": 0}
        assert (await asked).status_code == 200
        assert (await in_the_api(client, keys["rival"]))["sql"]["last_used_at"] is None
