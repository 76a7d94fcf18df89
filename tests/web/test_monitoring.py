"""The monitoring port, and what clients hear while the server stops."""

import asyncio

import httpx

from loraplex.web.cli.port import listen
from loraplex.web.monitoring import monitoring
from loraplex.web.state import State
from tests.integration.live_server import free_port

from .fake_engine import FakeEngine

BODY = {"model": "tiny", "prompt": "a", "max_tokens": 4}


async def test_the_monitoring_port_serves_metrics_and_probes_and_nothing_else(
    client: httpx.AsyncClient, state: State
) -> None:
    port = free_port()
    async with monitoring(state, listen("127.0.0.1", port)), httpx.AsyncClient(trust_env=False) as scraper:
        where = f"http://127.0.0.1:{port}"
        text = (await scraper.get(f"{where}/metrics")).text
        assert "loraplex_engine_up 1.0" in text
        assert (await scraper.get(f"{where}/ready")).json() == {"ready": True, "reasons": [], "warnings": []}
        for path in ("/", "/v1/models", "/api/v1/keys", "/openapi.json", "/docs"):
            assert (await scraper.get(where + path)).status_code == 404, path
    async with httpx.AsyncClient(trust_env=False) as scraper:
        try:
            await scraper.get(f"{where}/ready")
        except httpx.ConnectError:
            return
    raise AssertionError("it goes on when the server has ended")


async def test_who_comes_while_it_stops_is_told_to_come_back(
    client: httpx.AsyncClient, state: State, engine: FakeEngine
) -> None:
    engine.delay = 0.02
    state.settings = state.settings.model_copy(update={"drain_seconds": 60.0})
    running = asyncio.create_task(client.post("/v1/completions", json=BODY | {"max_tokens": 12}))
    while not engine.running:
        await asyncio.sleep(0.01)
    state.stopping.set()
    for path in ("/v1/models", "/version", "/", "/api/v1/adapters"):
        late = await client.get(path)
        assert (late.status_code, late.headers["connection"]) == (503, "close"), path
        assert int(late.headers["retry-after"]) > 0 and "stopping" in late.json()["error"]["message"]
    ready = await client.get("/ready")
    assert (ready.status_code, ready.json()["reasons"]) == (503, ["the server is stopping"])
    assert (await client.get("/health")).status_code == 200
    assert (await running).json()["choices"][0]["finish_reason"] == "length", "what ran before ends well"
    await asyncio.wait_for(state.drained.wait(), 60)
