"""Stop and start again: running streams end in order, and everything that was there is there again."""

import asyncio
import functools
import json
import signal
import time
from pathlib import Path
from typing import Any

import httpx

from .live_server import LiveServer
from .talk import COMPLETIONS, events, greedy, text_of, until, upload

DRAIN_SECONDS = 3.0
COUNT = 16


async def listen(http: httpx.AsyncClient, body: dict[str, Any], begun: asyncio.Event) -> list[str]:
    data: list[str] = []
    async for event in events(http, body):
        data.append(event)
        begun.set()
    return data


def ending(data: list[str]) -> str:
    """How a stream ended: its finish reason, or `error`."""
    assert data[-1] == "[DONE]"
    last = json.loads(data[-2])
    return "error" if "error" in last else str(last["choices"][0]["finish_reason"])


async def test_stop_under_load_and_start_again(
    checkpoint: Path, adapter_folders: dict[str, Path], tmp_path: Path
) -> None:
    server = LiveServer(tmp_path, checkpoint, num_kv_blocks=1200, drain_seconds=DRAIN_SECONDS)
    try:
        server.start()
        credentials = (server.data_dir / "credentials.json").read_bytes()
        key = str(json.loads(credentials)["api_key"])
        with server.client() as client:
            made = upload(client, "kept", adapter_folders["eight"])
            upload(client, "gone", adapter_folders["one"])
            client.delete("/api/v1/adapters/gone").raise_for_status()
        async with server.async_client(key) as http:
            said = await text_of(http, greedy("kept", "Again", COUNT))
            short, long = await stop_under_load(server, http)
        assert short == ["length"] * len(short)
        assert set(long) == {"error"}
        server.start()
        assert (server.data_dir / "credentials.json").read_bytes() == credentials
        async with server.async_client(key) as http:
            assert await text_of(http, greedy("kept", "Again", COUNT)) == said
            names = [model["id"] for model in (await http.get("/v1/models")).json()["data"]]
            assert names == ["tiny", "kept"]
            assert (await http.post(COMPLETIONS, json=greedy("gone", "a", 1))).status_code == 404
        with server.client() as client:
            assert client.get("/api/v1/adapters/kept").json()["versions"][0]["digest"] == made["version"]["digest"]
        server.signal_stop()
        assert server.wait_stopped(60) == 0
        assert "Traceback" not in server.log()
    finally:
        server.end()


async def stop_under_load(server: LiveServer, http: httpx.AsyncClient) -> tuple[list[str], list[str]]:
    """How streams that could end in time ended, and those that could not."""
    bodies = [greedy("kept", "short", 30)] * 2 + [greedy("kept", "long", 4000, n=3)] * 3
    begun = [asyncio.Event() for _ in bodies]
    streams = [asyncio.create_task(listen(http, *each)) for each in zip(bodies, begun, strict=True)]
    for event in begun:
        await event.wait()
    started = time.monotonic()
    server.signal_stop()
    endings = [ending(data) for data in await asyncio.gather(*streams)]
    assert await asyncio.to_thread(server.wait_stopped, 60) == 0
    assert time.monotonic() - started < DRAIN_SECONDS + 50
    return endings[:2], endings[2:]


async def test_told_to_end_twice(checkpoint: Path, tmp_path: Path) -> None:
    """While it drains newcomers are sent away in words; a second signal waits for nothing and leaves nothing."""
    server = LiveServer(tmp_path, checkpoint, num_kv_blocks=1200, drain_seconds=120)
    try:
        server.start()
        async with server.async_client() as http, server.async_client() as other:
            begun = asyncio.Event()
            stream = asyncio.create_task(listen(http, greedy("tiny", "long", 4000, n=3), begun))
            await begun.wait()
            server.signal_stop()
            await until(functools.partial(says_no, other), 30, "/ready says that it is stopping")
            late = await other.post(COMPLETIONS, json=greedy("tiny", "late", 1))
            assert late.status_code == 503 and int(late.headers["retry-after"]) > 0, late.text
            assert not stream.done(), "what ran goes on"
            server.signal_stop()
            assert await asyncio.to_thread(server.wait_stopped, 40) == 128 + signal.SIGTERM
            await asyncio.gather(stream, return_exceptions=True)
            await until(functools.partial(has_gone, server), 60, "the engine has gone too")
        assert "Traceback" not in server.log()
    finally:
        server.end()


async def says_no(http: httpx.AsyncClient) -> bool:
    return (await http.get("/ready")).status_code == 503


async def has_gone(server: LiveServer) -> bool:
    return not server.processes()
