"""An engine process that is stopped or hangs is replaced in bounded time, every time. One that works is left alone."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from loraplex.engine.config import EngineConfig
from loraplex.engine.ipc.client import EngineClient, EngineUnavailable
from tests.checkpoints import make_checkpoint

from .test_client import collect, outcome, request, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells who computes")
END_SECONDS = 15
"""After the engine stopped, all streams have ended."""
BACK_SECONDS = 10
"""And then a replacement serves, beside the time that loading takes."""


@pytest_asyncio.fixture
async def client(tmp_path: Path, broken_executable: Callable[[str], None]) -> AsyncIterator[EngineClient]:
    model = make_checkpoint(tmp_path / "model", "llama", max_position_embeddings=4096)
    client = EngineClient(EngineConfig(model=str(model), num_kv_blocks=2100, adapter_memory=16 << 20, num_threads=1))
    begun = time.monotonic()
    await client.start()
    loading[client] = time.monotonic() - begun
    yield client
    await client.stop()


loading: dict[EngineClient, float] = {}
"""Seconds that the first start took."""


async def listen(client: EngineClient, name: str) -> list[asyncio.Task[object]]:
    """Four streams that have begun."""
    ready = asyncio.create_task(collect(client, request(f"{name}-first")))
    streams = [asyncio.create_task(outcome(collect(client, request(f"{name}{i}", max_tokens=4000)))) for i in range(4)]
    await ready
    return streams


async def assert_replaced(client: EngineClient, streams: list[asyncio.Task[object]], words: str) -> None:
    """All streams end with one typed error, and the next engine serves, in time from now on."""
    stopped, restarts = time.monotonic(), client.restarts
    results = await asyncio.wait_for(asyncio.gather(*streams), END_SECONDS)
    for result in results:
        assert isinstance(result, EngineUnavailable) and words in str(result)
    assert not client.ready()
    await until(client.ready)
    assert time.monotonic() - stopped < END_SECONDS + BACK_SECONDS + 2 * loading[client]
    assert client.restarts == restarts + 1


async def test_one_that_is_stopped_is_replaced_also_after_it_was_slow_before(client: EngineClient) -> None:
    expected = await collect(client, request("before"))
    for turn in range(2):
        pid = client.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(6)
        assert not client.ready()
        assert (client.obstacle() or "").startswith("the engine has not answered for ")
        os.kill(pid, signal.SIGCONT)
        assert await collect(client, request("between")) == expected and client.pid == pid
        streams = await listen(client, f"turn{turn}-")
        os.kill(pid, signal.SIGSTOP)
        await assert_replaced(client, streams, "it was stopped from outside")
        assert await collect(client, request("after")) == expected


async def test_one_that_hangs_is_replaced_and_the_log_says_where_it_was(
    client: EngineClient, broken_executable: Callable[[str], None], tmp_path: Path
) -> None:
    expected = await collect(client, request("before"))
    for turn in range(2):
        streams = await listen(client, f"turn{turn}-")
        broken_executable("hang")
        await assert_replaced(client, streams, "it neither answered nor computed for")
        where = (tmp_path / "engine.log").read_text()
        assert where.count("in hang\n") == where.count("in serve\n") == turn + 1
        assert await collect(client, request("after")) == expected


@pytest.mark.parametrize("way", ["compute", "compile_behind_another_process"])
async def test_one_that_works_for_long_is_left_alone(
    client: EngineClient, broken_executable: Callable[[str], None], way: str
) -> None:
    expected, pid = await collect(client, request("before")), client.pid
    broken_executable(way)
    assert await asyncio.gather(*(collect(client, request(f"r{i}")) for i in range(3))) == [expected] * 3
    assert client.pid == pid and client.restarts == 0


async def test_a_blocked_event_loop_blames_nobody(client: EngineClient) -> None:
    """Messages that nobody has read are no silence."""
    pid = client.pid
    streams = await listen(client, "r")
    time.sleep(12)
    assert client.ready()
    for result in await asyncio.gather(*streams):
        assert isinstance(result, list) and len(result) == 4000
    assert client.pid == pid and client.restarts == 0
