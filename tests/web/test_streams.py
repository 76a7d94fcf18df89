"""What happens to work when a client leaves, the engine dies, the queue is full or the server stops. Real sockets."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from loraplex.engine.ipc.client import EngineState
from loraplex.web.server import Server
from loraplex.web.state import State
from tests.integration.live_server import free_port

from .conftest import KEY
from .fake_engine import BASE_SENTENCE, FakeEngine

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest_asyncio.fixture
async def server(state: State) -> AsyncIterator[str]:
    """The address of the real server."""
    state.settings = state.settings.model_copy(update={"port": free_port()})
    server = Server(state)
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(60):
        while not server.started or not state.started.is_set():
            await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{state.settings.port}"
    server.should_exit = True
    await asyncio.wait_for(task, 60)


@pytest_asyncio.fixture
async def http(server: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server, headers={"authorization": f"Bearer {KEY}"}) as client:
        yield client


@pytest_asyncio.fixture
async def sdk(server: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server}/v1", api_key=KEY, max_retries=0) as client:
        yield client


async def quiet(engine: FakeEngine, seconds: float = 60.0) -> None:
    """Return when the engine has no work left; fail when it takes longer."""
    async with asyncio.timeout(seconds):
        while engine.running:
            await asyncio.sleep(0.01)


async def leave(http: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any], prompts: int = 1) -> None:
    """Ask, and hang up once the engine has said something to each prompt."""
    asking = asyncio.create_task(http.post("/v1/completions", json=body, timeout=60))
    async with asyncio.timeout(60):
        while len(engine.running) < prompts or not engine.made:
            await asyncio.sleep(0.01)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking


async def test_openai_whole_and_stream(sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.chat.completions.create(model="tiny", messages=HELLO, n=2, logprobs=True, top_logprobs=2)
    assert [choice.message.content for choice in whole.choices] == [BASE_SENTENCE] * 2
    assert whole.choices[0].logprobs is not None
    assert whole._request_id
    text, usage = "", None
    stream = await sdk.chat.completions.create(
        model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}, extra_body={"top_k": 5}
    )
    async for chunk in stream:
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    assert text == BASE_SENTENCE
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens * 2 == whole.usage.completion_tokens


async def test_openai_completions_and_models(sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.completions.create(model="tiny", prompt=["a", "b"], logprobs=1, max_tokens=4)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert [model.id async for model in sdk.models.list()] == ["tiny"]
    assert (await sdk.models.retrieve("tiny")).owned_by == "loraplex"


async def test_openai_exception_classes(sdk: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist") as missing:
        await sdk.chat.completions.create(model="none", messages=HELLO)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        await sdk.chat.completions.create(model="tiny", messages=HELLO, n=99)
    assert bad.value.param == "n"
    with pytest.raises(openai.AuthenticationError):
        await sdk.with_options(api_key="wrong").models.list()
    engine.state = EngineState.RESTARTING
    with pytest.raises(openai.InternalServerError) as away:
        await sdk.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    assert away.value.status_code == 503
    assert int(away.value.response.headers["retry-after"]) >= 1


async def test_openai_sees_an_engine_lost_in_mid_stream(sdk: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.crash_after = 3
    stream = await sdk.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="engine stopped"):
        async for _ in stream:
            pass


async def test_a_lost_engine_ends_a_stream_with_one_error_and_done(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.crash_after = 3
    body = {"model": "tiny", "messages": HELLO, "stream": True}
    response = await http.post("/v1/chat/completions", json=body)
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    errors = [event for event in events[:-1] if "error" in json.loads(event)]
    assert (len(errors), events[-1], errors[0]) == (1, "[DONE]", events[-2])
    assert json.loads(errors[0])["error"]["code"] == "unavailable"


async def test_a_lost_engine_fails_a_whole_answer_with_503(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.crash_after = 3
    response = await http.post("/v1/completions", json={"model": "tiny", "prompt": ["a", "b"]})
    assert response.status_code == 503
    assert response.headers["retry-after"]
    await quiet(engine)
    engine.crash_after, engine.state = None, EngineState.READY
    assert (await http.post("/v1/completions", json={"model": "tiny", "prompt": "a"})).status_code == 200


async def test_a_full_queue_is_a_503_also_for_streams(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.max_queue = 0
    for stream in (False, True):
        response = await http.post("/v1/completions", json={"model": "tiny", "prompt": "a", "stream": stream})
        assert (response.status_code, response.headers["retry-after"]) == (503, "2")


@pytest.mark.parametrize("full", ["queue", "in flight"])
@pytest.mark.parametrize("path", ["completions", "chat/completions", "responses"])
async def test_a_full_server_refuses_before_it_reads_the_body(
    http: httpx.AsyncClient, engine: FakeEngine, state: State, path: str, full: str
) -> None:
    if full == "queue":
        engine.max_queue = 0
    else:
        state.requests.taken = state.settings.max_concurrent_requests
    response = await http.post(f"/v1/{path}", content=b"no JSON, which nobody gets to see")
    state.requests.taken = 0
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")


async def test_too_many_requests_in_flight(http: httpx.AsyncClient, state: State) -> None:
    state.requests.taken = state.settings.max_concurrent_requests
    response = await http.post("/v1/completions", json={"model": "tiny", "prompt": "a"})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")
    state.requests.taken = 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["a", ["a", "b", "c"]])
async def test_work_stops_when_the_client_leaves(
    http: httpx.AsyncClient, engine: FakeEngine, state: State, stream: bool, prompt: str | list[str]
) -> None:
    engine.delay = 0.05
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 200, "ignore_eos": True, "stream": stream}
    await leave(http, engine, body, 1 if prompt == "a" else 3)
    await quiet(engine)
    assert len(engine.aborted) == (1 if prompt == "a" else 3)
    async with asyncio.timeout(60):
        while state.requests.taken:  # given back a moment after the engine's last word
            await asyncio.sleep(0.01)
    assert state.metrics.recent[-1].status == "abort"


async def test_streams_ping_while_they_wait(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.delay = 0.5
    body = {"model": "tiny", "prompt": "a", "max_tokens": 2, "stream": True}
    text = (await http.post("/v1/completions", json=body)).text
    assert text.startswith(": ping\n\n")
    assert text.endswith("data: [DONE]\n\n")


async def test_stopping_drains_and_then_says_so(http: httpx.AsyncClient, engine: FakeEngine, state: State) -> None:
    """One request ends in the time for draining, the other is ended with an error event; none is cut in silence."""
    engine.delay, engine.stays_at = 0.02, 10
    state.settings = state.settings.model_copy(update={"drain_seconds": 3.0})
    short = asyncio.create_task(http.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 5}))
    body = {"model": "tiny", "prompt": "b", "max_tokens": 200, "ignore_eos": True, "stream": True}
    long = asyncio.create_task(http.post("/v1/completions", json=body, timeout=60))
    async with asyncio.timeout(60):
        while len(engine.running) < 2:
            await asyncio.sleep(0.01)
    state.stopping.set()
    refused = await http.post("/v1/completions", json={"model": "tiny", "prompt": "c"})
    assert refused.status_code == 503
    assert (await short).status_code == 200
    last = (await long).text.split("\n\n")
    assert "error" in json.loads(last[-3].removeprefix("data: "))
    assert last[-2] == "data: [DONE]"


async def test_signals(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    server = Server(state)
    server.handle_exit(15, None)
    assert state.stopping.is_set() and not await server.on_tick(1), "the port stays open while requests drain"
    state.drained.set()
    assert await server.on_tick(1) and not exits
    server.handle_exit(15, None)
    assert exits == [128 + 15]


async def test_readiness_follows_the_engine(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await http.get("/ready")).json() == {"ready": True, "reasons": [], "warnings": []}
    engine.state = EngineState.RESTARTING
    response = await http.get("/ready")
    assert (response.status_code, response.json()["reasons"]) == (503, ["the engine is restarting"])
    assert (await http.get("/health")).status_code == 200
