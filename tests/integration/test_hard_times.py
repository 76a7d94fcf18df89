"""A killed engine, clients that hang up, and bodies made to hurt: the server goes on."""

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from loraplex.engine.text.tokenizer import Tokenizer

from .live_server import BASE, START_SECONDS, LiveServer
from .reference import Reference
from .talk import CHAT, COMPLETIONS, engine_status, events, greedy, text_of, until

LONG = 4000
MODELS = (BASE, "one", "eight", "twenty")
CLIENTS = 100
HUGE = 10**30


@pytest.fixture
def expected(reference: Reference, tokenizer: Tokenizer) -> list[str]:
    prompt = tuple(tokenizer.encode("Again and again"))
    adapters = (None, *MODELS[1:])
    return [tokenizer.decode(reference.greedy(adapter, prompt, 16), False) for adapter in adapters]


async def say_again(http: httpx.AsyncClient) -> list[str]:
    return list(await asyncio.gather(*(text_of(http, greedy(model, "Again and again", 16)) for model in MODELS)))


async def wait_idle(http: httpx.AsyncClient) -> None:
    """Nothing runs or waits, and every block is free."""

    async def idle() -> bool:
        answer = await engine_status(http)
        info, status = answer["info"], answer["status"]
        busy = status["running"] + status["waiting"] + sum(adapter["running"] for adapter in status["adapters"])
        return not busy and status["free_blocks"] == info["num_blocks"]

    await until(idle, 120, "the engine is idle")
    assert (await engine_status(http))["status"]["integrity_errors"] == 0


async def metric(http: httpx.AsyncClient, name: str) -> float:
    lines = (await http.get("/metrics")).text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def test_a_killed_engine_comes_back_by_itself(
    server: LiveServer, http: httpx.AsyncClient, expected: list[str]
) -> None:
    assert await say_again(http) == expected
    restarts = (await engine_status(http))["restarts"]
    begun = asyncio.Semaphore(0)

    async def listen(model: str) -> list[str]:
        data: list[str] = []
        async for event in events(http, greedy(model, "on and on", LONG)):
            if not data:
                begun.release()
            data.append(event)
        return data

    streams = [asyncio.create_task(listen(model)) for model in MODELS * 2]
    whole = [asyncio.create_task(http.post(COMPLETIONS, json=greedy(model, "and on", LONG))) for model in MODELS]
    for _ in streams:
        await begun.acquire()
    killed = server.engine_pid()
    os.kill(killed, signal.SIGKILL)
    for data in await asyncio.gather(*streams):
        assert data[-1] == "[DONE]"
        assert json.loads(data[-2])["error"]["type"] == "server_error"
        assert not any("error" in json.loads(event) for event in data[:-2])
    for response in await asyncio.gather(*whole):
        assert_try_again(response)
    assert (await http.get("/ready")).status_code == 503
    assert_try_again(await http.post(COMPLETIONS, json=greedy("one", "too soon", 1)))

    async def ready() -> bool:
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/v1/models")).status_code == 200
        return (await http.get("/ready")).status_code == 200

    await until(ready, START_SECONDS, "the engine is back")
    assert server.engine_pid() != killed
    assert await say_again(http) == expected
    assert (await engine_status(http))["restarts"] == restarts + 1
    assert await metric(http, "loraplex_engine_restarts_total") == restarts + 1
    await wait_idle(http)


def assert_try_again(response: httpx.Response) -> None:
    assert response.status_code == 503, response.text
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["type"] == "server_error"


async def test_a_stopped_engine_is_told_of_and_replaced(
    server: LiveServer, http: httpx.AsyncClient, expected: list[str]
) -> None:
    """Streams end within 15 s. Meanwhile the server says what is the matter, and keys are good."""
    begun = asyncio.Event()

    async def listen() -> list[str]:
        data = []
        async for event in events(http, greedy("one", "on and on", LONG)):
            begun.set()
            data.append(event)
        return data

    stream = asyncio.create_task(listen())
    await begun.wait()
    stopped = server.engine_pid()
    os.kill(stopped, signal.SIGSTOP)
    told: set[str] = set()
    deadline = asyncio.get_running_loop().time() + 15
    while not stream.done():
        assert asyncio.get_running_loop().time() < deadline, told
        told |= set((await http.get("/ready")).json()["reasons"])
        assert (await http.get("/v1/models")).status_code == 200
        await asyncio.sleep(0.2)
    silent = {reason for reason in told if reason.startswith("the engine has not answered for ")}
    assert silent and told - silent <= {"the engine is restarting"}, told
    data = await stream
    assert data[-1] == "[DONE]" and json.loads(data[-2])["error"]["type"] == "server_error"

    async def ready() -> bool:
        return (await http.get("/ready")).status_code == 200

    await until(ready, START_SECONDS, "the engine is back")
    assert server.engine_pid() != stopped
    assert await say_again(http) == expected
    await wait_idle(http)


async def test_a_hundred_clients_that_hang_up_leave_nothing_behind(
    http: httpx.AsyncClient, server: LiveServer, expected: list[str]
) -> None:
    source = random.Random(11)

    async def hang_up(number: int) -> None:
        body = greedy(source.choice(MODELS), f"client {number % 7} says", LONG, n=source.choice([1, 1, 3]))
        chat = {"messages": [{"role": "user", "content": f"client {number % 7}"}]}
        path = source.choice([COMPLETIONS, CHAT])
        body = body if path == COMPLETIONS else {**{k: v for k, v in body.items() if k != "prompt"}, **chat}
        # A connection of its own, which ends with the client.
        async with server.async_client() as client:
            work = client.post(path, json=body) if number % 2 else drain(client, body, path)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(work, source.uniform(0.0, 1.5))

    await asyncio.gather(*map(hang_up, range(CLIENTS)))
    await wait_idle(http)
    assert await metric(http, "vllm:num_requests_running") == await metric(http, "vllm:num_requests_waiting") == 0
    assert await metric(http, "loraplex_integrity_errors_total") == 0
    assert await say_again(http) == expected


async def drain(client: httpx.AsyncClient, body: dict[str, Any], path: str) -> None:
    async for _ in events(client, body, path):
        pass


def _body(**fields: Any) -> bytes:
    return json.dumps({"model": "eight", "prompt": "a", "max_tokens": 2, **fields}).encode()


HOSTILE: list[bytes] = [
    b"",
    b"\x00" * 100,
    b"\xff\xfe",
    b"null",
    b"[" * 100_000,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b'{"model": "eight", "prompt": "a", "temperature": NaN}',
    b'{"model": "eight", "prompt": "a", "temperature": 1e999}',
    b'{"model": "eight", "prompt": "a", "top_p": -Infinity}',
    b'{"model": "eight", "prompt": "a", "seed": ' + b"9" * 100_000 + b"}",
    b'{"model": "eight", "prompt": "\\ud800"}',
    b'{"model": "eight", "prompt": "\\udfff\\ud800", "stream": true}',
    b'{"model": "eight", "prompt": "a", "stop": "\\ud83d"}',
    b'{"model": "\\udcff", "prompt": "a"}',
    _body(prompt="x" * 10_000_000),
    _body(prompt="x" * 900_000),
    _body(prompt="long " * 5000),
    _body(prompt=[5] * 5000),
    _body(prompt=[320]),
    _body(prompt=[-1]),
    _body(prompt=[2**31 - 1]),
    _body(prompt=[HUGE]),
    _body(prompt=[[1], [10**6]]),
    _body(prompt=[[]]),
    _body(prompt=[None]),
    _body(prompt={"prompt": "a"}),
    _body(n=10**9),
    _body(n=-1),
    _body(n=1.5),
    _body(best_of=2**40),
    _body(max_tokens=HUGE),
    _body(max_tokens=-(2**63)),
    _body(logprobs=10**6),
    _body(prompt_logprobs=2**31),
    _body(min_tokens=50),
    _body(top_k=HUGE),
    _body(logit_bias={"1": 1e308}),
    _body(logit_bias={"99999999999999999999": 1}),
    _body(logit_bias={str(index): -100 for index in range(20_000)}),
    _body(allowed_token_ids=[]),
    _body(stop_token_ids=[-1]),
    _body(stop=["x" * 10_000]),
    _body(repetition_penalty=0),
    _body(priority=HUGE),
    _body(stream="yes"),
    _body(model="../../etc/passwd"),
    _body(model="eight@" + "9" * 200),
    _body(model="\x00"),
]
ODD: list[dict[str, Any]] = [
    {"allowed_token_ids": [319], "max_tokens": 40},
    {"logit_bias": {str(index): -100 for index in range(320)}},
    {"temperature": 1e-300, "top_p": 1e-300, "min_p": 1.0},
    {"temperature": 2, "top_k": 1, "repetition_penalty": 100, "presence_penalty": -2},
    {"n": 16, "max_tokens": 50, "temperature": 2, "logprobs": 20, "stop": ["\U0001f389"]},
    {"prompt": "\u202e\u0000\ufffe" * 20, "echo": True},
    {"prompt": [1], "max_tokens": 500, "ignore_eos": True},
    {"min_tokens": 5, "max_tokens": 5, "stop_token_ids": list(range(2, 320))},
]
"""Unusual and allowed."""


async def test_hostile_bodies_are_refused_and_harm_nobody(
    server: LiveServer, http: httpx.AsyncClient, expected: list[str]
) -> None:
    engine, restarts = server.engine_pid(), (await engine_status(http))["restarts"]
    company = asyncio.create_task(drain(http, greedy("one", "meanwhile", 500), COMPLETIONS))
    responses = await asyncio.gather(*(http.post(COMPLETIONS, content=body) for body in HOSTILE))
    for body, response in zip(HOSTILE, responses, strict=True):
        assert 400 <= response.status_code < 500, (body[:80], response.status_code, response.text)
        assert response.json()["error"]["message"]
    for fields in ODD:
        for stream in (False, True):
            response = await http.post(COMPLETIONS, content=_body(stream=stream, **fields))
            assert response.status_code == 200 and '"error"' not in response.text, (fields, response.text[-300:])
    await company
    assert (server.engine_pid(), (await engine_status(http))["restarts"]) == (engine, restarts)
    assert await say_again(http) == expected
    await wait_idle(http)


async def test_a_refusal_arrives_though_its_body_was_not_wanted(server: LiveServer) -> None:
    async def pieces(size: int) -> AsyncIterator[bytes]:
        for _ in range(size >> 16):
            yield bytes(1 << 16)

    async with server.async_client(key="lp-nobody-knows-this-key") as stranger:
        path = "/api/v1/adapters/a/files/adapter_model.safetensors"
        for content in (bytes(8 << 20), pieces(8 << 20)):
            assert (await stranger.put(path, content=content)).status_code == 401
    async with server.async_client() as client:
        for content in (bytes(8 << 20), pieces(8 << 20)):
            assert (await client.post(COMPLETIONS, content=content)).status_code == 413
            assert (await client.put(path, content=content)).status_code in (400, 411)
