"""kill -9 of the engine, then of the API process, in the middle of streams: the ledger counts what was served, once."""

import asyncio
import json
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from .live_server import BASE, START_SECONDS, LiveServer
from .talk import COMPLETIONS, complete, engine_status, greedy, until, upload

PROMPT = "Again and again"
SHORT, FIRST, LONG = 8, 100, 3500
FLUSHED = 1.2
"""Seconds after which what has ended is in the database: docs/tenancy.md promises one where nothing is busy."""
LOOKED_AGAIN = 6.0
"""Seconds in which a server looks for what others have left open."""
UNSEEN = 16
"""Tokens of a stream that the server has counted and whose chunk was on its way when the engine died, at most: far
fewer than FIRST, which each stream has told before."""


@dataclass
class Stream:
    """What a client has of one answer; `served` and `prompt` are tokens, as the last chunk told them."""

    adapter: str
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    prompt: int = 0
    served: int = 0
    endings: list[str] = field(default_factory=list)
    """Each terminal event, in order."""
    cut: bool = False
    """The connection ended without one."""

    async def listen(self, http: httpx.AsyncClient, count: int = LONG) -> None:
        usage = {"include_usage": True, "continuous_usage_stats": True}
        body = greedy(self.adapter, PROMPT, count, stream=True, stream_options=usage)
        try:
            async with http.stream("POST", COMPLETIONS, json=body) as response:
                assert response.status_code == 200, await response.aread()
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        self._take(line.removeprefix("data: "))
        except httpx.TransportError:
            self.cut = True

    def _take(self, data: str) -> None:
        if data == "[DONE]":
            self.endings.append("done")
            return
        chunk: dict[str, Any] = json.loads(data)
        if "error" in chunk:
            self.endings.append(chunk["error"]["type"])
            return
        self.prompt = chunk["usage"]["prompt_tokens"]
        self.served = chunk["usage"]["completion_tokens"]
        if self.served >= FIRST:
            self.begun.set()


Sums = dict[str, Counter[str]]
"""Model -> counts of the ledger."""


async def booked(http: httpx.AsyncClient, digests: dict[str, str]) -> Sums:
    """By adapter version; a model that nobody asked has no counts."""
    rows = (await http.get("/api/v1/usage", params={"by": "adapter"})).json()["data"]
    by_digest = {row["adapter_digest"]: row for row in rows}
    assert len(by_digest) == len(rows) and by_digest.keys() <= set(digests.values())
    found = {model: by_digest.get(digest, {}) for model, digest in digests.items()}
    return {
        model: Counter({name: count for name, count in row.items() if not name.startswith("adapter")})
        for model, row in found.items()
    }


def since(before: Sums, now: Sums) -> Sums:
    return {
        model: Counter({name: count - before[model][name] for name, count in counts.items()})
        for model, counts in now.items()
    }


async def until_booked(http: httpx.AsyncClient, before: Sums, digests: dict[str, str], requests: int) -> None:
    """Return when so many requests are in the database."""

    async def are_booked() -> bool:
        sums = since(before, await booked(http, digests))
        return sum(counts["requests"] for counts in sums.values()) >= requests

    await until(are_booked, 60, "what has ended is in the database")


def are_open(server: LiveServer, requests: int) -> bool:
    """Whether so many requests are in the database as begun and not ended; no other way tells that."""
    with closing(sqlite3.connect(server.data_dir / "loraplex.db")) as database:
        (found,) = database.execute("SELECT count(*) FROM open_requests").fetchone()
    return bool(found == requests)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ledger")


@pytest.fixture(scope="module")
def own(folder: Path, checkpoint: Path) -> Iterator[LiveServer]:
    server = LiveServer(folder, checkpoint, num_kv_blocks=1200, drain_seconds=1)
    try:
        server.start()
        yield server
    finally:
        server.end()


@pytest.fixture(scope="module")
def digests(own: LiveServer, adapter_folders: dict[str, Path]) -> dict[str, str]:
    """Two versions of one name, and the base: model in requests -> digest in the ledger."""
    with own.client() as http:
        made = [upload(http, "kept", adapter_folders[name])["version"] for name in ("one", "eight")]
    return {f"kept@{version['number']}": version["digest"] for version in made} | {BASE: ""}


async def begin(http: httpx.AsyncClient, models: Sequence[str]) -> tuple[list[Stream], list[asyncio.Task[None]]]:
    """Streams that have all told their FIRST tokens."""
    streams = [Stream(model) for model in models]
    tasks = [asyncio.create_task(stream.listen(http)) for stream in streams]
    async with asyncio.timeout(60):
        for stream in streams:
            await stream.begun.wait()
    return streams, tasks


def of(streams: Sequence[Stream], model: str) -> list[Stream]:
    return [stream for stream in streams if stream.adapter == model]


async def test_a_killed_engine(own: LiveServer, digests: dict[str, str]) -> None:
    """Each stream ends once, in words; what came of it is booked to its version, with what it was asked."""
    async with own.async_client() as http:
        before = await booked(http, digests)
        whole = {model: (await complete(http, greedy(model, PROMPT, SHORT)))["usage"] for model in digests}
        streams, tasks = await begin(http, [*digests] * 2)
        os.kill(own.engine_pid(), signal.SIGKILL)
        await asyncio.gather(*tasks)
        assert all(stream.endings == ["server_error", "done"] and not stream.cut for stream in streams)
        await until_booked(http, before, digests, len(whole) + len(streams))
        await asyncio.sleep(FLUSHED)  # nor more than that
        sums = since(before, await booked(http, digests))
        for model, usage in whole.items():
            counts, cut = sums[model], of(streams, model)
            assert (counts["requests"], counts["errors"], counts["unknown"]) == (1 + len(cut), len(cut), 0)
            assert counts["prompt_tokens"] == usage["prompt_tokens"] + sum(stream.prompt for stream in cut)
            served = usage["completion_tokens"] + sum(stream.served for stream in cut)
            assert served <= counts["completion_tokens"] <= served + UNSEEN * len(cut)
            assert usage["completion_tokens"] == SHORT and all(stream.served for stream in cut)

        async def ready() -> bool:
            return (await http.get("/ready")).status_code == 200

        await until(ready, START_SECONDS, "the engine is back")
        assert (await engine_status(http))["restarts"] == 1


async def test_a_killed_api_process(own: LiveServer, digests: dict[str, str]) -> None:
    """What had ended is there, once; what ran is booked as unknown, with no less than clients have seen of it."""
    async with own.async_client() as http:
        before = await booked(http, digests)
        for model in digests:
            await complete(http, greedy(model, PROMPT, SHORT))
        streams, tasks = await begin(http, [*digests] * 2)
        await until_booked(http, before, digests, len(digests))
        await until(lambda: asyncio.to_thread(are_open, own, len(streams)), 60, "what has begun is in the database")
        own.kill()
        await asyncio.gather(*tasks)
    assert all(stream.cut and not stream.endings for stream in streams), "nobody was left to say more"

    async def alone() -> bool:
        return not own.processes()

    await until(alone, 60, "the engine has seen that nobody asks it")
    own.start()
    assert f"{len(streams)} requests of a crashed server were recorded with unknown usage" in own.log()
    async with own.async_client() as http:
        sums = since(before, await booked(http, digests))
        for model, counts in sums.items():
            cut = of(streams, model)
            assert (counts["requests"], counts["errors"], counts["unknown"]) == (1 + len(cut), 0, len(cut))
            assert counts["completion_tokens"] == SHORT
            seen = sum(stream.prompt + stream.served for stream in cut)
            assert seen <= counts["unknown_tokens"] == sum(stream.prompt + LONG for stream in cut)
        await asyncio.sleep(LOOKED_AGAIN)
        assert since(before, await booked(http, digests)) == sums, "what is settled is settled"
