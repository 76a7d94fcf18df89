"""An adapter that is removed while requests wait for it: each hears so, in words and with the status that fits."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from loraplex.web.server import Server
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State, open_state
from tests.checkpoints import make_checkpoint
from tests.integration.live_server import free_port

from .fake_engine import FakeEngine
from .test_adapters_api import add

LONG = 16_000


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Room for an answer that outlasts the test."""
    return make_checkpoint(tmp_path_factory.mktemp("model") / "tiny", max_position_embeddings=LONG + 64)


@asynccontextmanager
async def one_seat(settings: Settings, model: Path) -> AsyncIterator[tuple[State, httpx.AsyncClient]]:
    """A real server with a real engine that has room for one adapter, and an administrator."""
    port = free_port()
    small = {
        "port": port,
        "num_threads": 1,
        "num_kv_blocks": LONG // 16 + 100,
        "max_loaded_adapters": 1,
        "ping_seconds": 60.0,
    }
    # An upload while the room is taken would wait for it.
    small["preflight_logits"] = False
    state = open_state(settings.model_copy(update=small), model)
    server = Server(state)
    task = asyncio.create_task(server.serve())
    await asyncio.wait_for(state.started.wait(), 240)
    token = state.registry.keys.create("admin", ["admin"], actor="system").token
    state.registry.snapshots.refresh()
    headers = {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as http:
        yield state, http
    server.should_exit = True
    await asyncio.wait_for(task, 60)


def ask(http: httpx.AsyncClient, model: str, count: int = 4, stream: bool = False) -> "asyncio.Task[httpx.Response]":
    body = {"model": model, "prompt": "a", "max_tokens": count, "ignore_eos": True, "stream": stream}
    return asyncio.create_task(http.post("/v1/completions", json=body))


async def listen(http: httpx.AsyncClient, model: str, lines: list[str], begun: asyncio.Event) -> None:
    """The lines of its stream; `begun`: there is one."""
    body = {"model": model, "prompt": "a", "max_tokens": 4, "ignore_eos": True, "stream": True}
    async with http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line:
                lines.append(line)
                begun.set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_who_waits_for_a_removed_adapter_hears_so(
    settings: Settings, talkative: Path, adapter_folders: list[Path]
) -> None:
    async with one_seat(settings, talkative) as (state, http):

        async def wait_in_line() -> "list[asyncio.Task[httpx.Response]]":
            await until(lambda: state.engine.status is not None and state.engine.status.waiting == 0)
            tasks = [ask(http, "two", stream=stream) for stream in (False, True)]
            await until(lambda: state.engine.status is not None and state.engine.status.waiting == 2)
            return tasks

        for name, folder in zip(("one", "two"), adapter_folders, strict=True):
            assert (await add(http, name, folder)).status_code == 201
        holder = ask(http, "one", LONG, stream=True)
        await until(lambda: state.engine.status is not None and state.engine.status.running == 1)

        waiting = await wait_in_line()
        assert (await add(http, "two", adapter_folders[0])).status_code == 201
        assert (await http.delete("/api/v1/adapters/two@1")).status_code == 204
        for response in await asyncio.gather(*waiting):
            assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")
            assert "Another version serves now" in response.text and response.headers["retry-after"]

        assert (await add(http, "two", adapter_folders[1])).status_code == 201
        waiting = await wait_in_line()
        state.settings = state.settings.model_copy(update={"ping_seconds": 0.1})
        pinged, late = asyncio.Event(), list[str]()
        listening = asyncio.create_task(listen(http, "two", late, pinged))
        await asyncio.wait_for(pinged.wait(), 60)
        await until(lambda: state.engine.status is not None and state.engine.status.waiting == 3)
        assert (await http.delete("/api/v1/adapters/two")).status_code == 204
        for response in await asyncio.gather(*waiting):
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
            assert error["message"].startswith("The adapter was removed before this request could run. The model `two`")
        await listening
        assert late[0] == ": ping" and late[-1] == "data: [DONE]"
        assert json.loads(late[-2].removeprefix("data: "))["error"]["code"] == "model_not_found"

        assert not holder.done()
        holder.cancel()
        assert state.engine.status is not None and state.engine.status.integrity_errors == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_an_adapter_the_engine_has_lost_for_now_is_worth_a_retry(
    client: httpx.AsyncClient, admin: dict[str, str], engine: FakeEngine, adapter_folders: list[Path], stream: bool
) -> None:
    client.headers.update(admin)
    await add(client, "kept", adapter_folders[0])
    engine.registered.clear()
    response = await ask(client, "kept", stream=stream)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")
    assert response.json()["error"]["message"] == "adapter 'kept' is not registered", "the engine knows digests alone"
    assert response.headers["retry-after"]
