"""The engine process through its client: serving, aborting, dying, coming back."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from loraplex.engine.config import EngineConfig
from loraplex.engine.ipc.client import (
    AdapterError,
    EngineClient,
    EngineStartError,
    EngineState,
    EngineUnavailable,
    RequestRejected,
)
from loraplex.engine.model.config import base_signature
from loraplex.engine.protocol import AdapterRef, AdapterSpec, FinishReason, GenerateRequest, Tokens
from loraplex.engine.sampling_params import SamplingParams
from loraplex.lora.inspection.inspection import inspect_adapter
from tests.checkpoints import make_adapter, make_checkpoint

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROMPT = [5, 17, 33, 60, 7]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), "llama", max_position_embeddings=4096)


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AdapterSpec:
    folder = make_adapter(tmp_path_factory.mktemp("adapter"), model, rank=4)
    inspection = inspect_adapter(
        (folder / "adapter_config.json").read_bytes(), folder / "adapter_model.safetensors", base_signature(model)
    )
    assert inspection.manifest is not None, inspection.findings
    return AdapterSpec(digest=inspection.manifest.digest, path=str(folder))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(model: Path) -> AsyncIterator[EngineClient]:
    """Of one process for all tests that leave it alive."""
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("GLIBC_TUNABLES", raising=False)
        async with opened(model) as client:
            environment.undo()
            yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mortal(model: Path) -> AsyncIterator[EngineClient]:
    """Of a process that tests may kill: they leave another one that is ready. It is started with an allocator that the
    user has tuned."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
        async with opened(model) as client:
            yield client


@asynccontextmanager
async def opened(model: Path) -> AsyncIterator[EngineClient]:
    client = EngineClient(EngineConfig(model=str(model), num_kv_blocks=2100, adapter_memory=16 << 20, num_threads=1))
    await client.start()
    yield client
    await client.stop()


def request(name: str, max_tokens: int = 8, adapter: str | None = None, **settings: object) -> GenerateRequest:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **settings)  # type: ignore[arg-type]
    refs = [] if adapter is None else [AdapterRef(adapter)]
    return GenerateRequest(request_id=name, prompt_token_ids=PROMPT, params=params, adapters=refs)


async def collect(client: EngineClient, request: GenerateRequest) -> list[int]:
    return [token async for message in client.generate(request) for token in message.token_ids]


async def until(condition: Callable[[], bool], seconds: float = 240) -> None:
    """The longest wait is for a process that imports torch."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        await asyncio.sleep(0.02)


async def outcome(work: Awaitable[list[int]]) -> object:
    try:
        return await work
    except (EngineUnavailable, RequestRejected) as error:
        return error


async def test_serves_base_and_adapter_together(client: EngineClient, adapter: AdapterSpec) -> None:
    await client.register_adapter(adapter)
    base, tuned, again = await asyncio.gather(
        collect(client, request("base")),
        collect(client, request("tuned", adapter=adapter.digest)),
        collect(client, request("again")),
    )
    assert len(base) == len(tuned) == 8
    assert base == again != tuned


async def test_a_full_queue_is_known_without_the_engine(mortal: EngineClient) -> None:
    """It is stopped, and cannot be asked."""
    assert mortal.pid is not None
    most = mortal.config.max_queue
    os.kill(mortal.pid, signal.SIGSTOP)
    tasks = [asyncio.create_task(collect(mortal, request(f"queued-{number}"))) for number in range(most)]
    try:
        await asyncio.sleep(0)
        with pytest.raises(RequestRejected, match=f"{most} requests wait already"):
            mortal.check_room("default")
        with pytest.raises(RequestRejected, match=f"{most} requests wait already"):
            await collect(mortal, request("one more"))
        mortal.check_room("another tenant")
    finally:
        os.kill(mortal.pid, signal.SIGCONT)
    assert [len(tokens) for tokens in await asyncio.gather(*tasks)] == [8] * most
    mortal.check_room("default")


async def test_every_choice_ends_once(client: EngineClient) -> None:
    endings = [
        message.index async for message in client.generate(request("three", n=3)) if message.finish_reason is not None
    ]
    assert sorted(endings) == [0, 1, 2]


async def test_one_choice_is_ended_while_the_other_goes_on(client: EngineClient) -> None:
    lengths, reasons, running, ended = [0, 0], {}, 2, False
    async for message in client.generate(request("two", n=2, max_tokens=1500)):
        lengths[message.index] += len(message.token_ids)
        if message.finish_reason is not None:
            reasons[message.index] = message.finish_reason
        if lengths[1] >= 3 and not ended:
            client.end_choice("two", 0)
            ended = True
        if 1000 <= lengths[1] < 1500 and client.status is not None:
            running = client.status.running
    assert reasons == {0: FinishReason.ABORT, 1: FinishReason.LENGTH}
    assert lengths[0] < 1000 and lengths[1] == 1500, "the engine runs on until it has heard"
    assert running == 1


async def test_closing_the_stream_frees_everything(client: EngineClient) -> None:
    async with aclosing(client.generate(request("long", max_tokens=4000))) as stream:
        async for _ in stream:
            break
        await until(lambda: client.status is not None and client.status.running == 1)
    await until(lambda: client.status is not None and client.status.running == 0)
    assert client.status is not None and client.info is not None
    assert client.status.integrity_errors == 0
    await collect(client, request("after"))


async def test_refusals_come_in_words(client: EngineClient) -> None:
    with pytest.raises(RequestRejected, match="vocabulary"):
        await collect(client, GenerateRequest(request_id="bad", prompt_token_ids=[10**6], params=SamplingParams()))
    with pytest.raises(RequestRejected) as refused:
        await collect(client, request("unknown", adapter="0" * 64))
    assert refused.value.kind == "unavailable"
    with pytest.raises(AdapterError, match="not registered"):
        await client.load_adapter("0" * 64)
    assert len(await collect(client, request("fine"))) == 8


async def test_a_killed_engine_ends_each_stream_once_and_comes_back(mortal: EngineClient, adapter: AdapterSpec) -> None:
    restarts = mortal.restarts
    await mortal.register_adapter(adapter)
    expected = await collect(mortal, request("before", adapter=adapter.digest))
    streams = [asyncio.create_task(outcome(collect(mortal, request(f"r{i}", max_tokens=4000)))) for i in range(8)]
    await until(lambda: mortal.status is not None and mortal.status.running == 8)
    assert mortal.pid is not None
    os.kill(mortal.pid, signal.SIGKILL)
    results = await asyncio.wait_for(asyncio.gather(*streams), 60)
    assert all(isinstance(result, EngineUnavailable) for result in results)
    with pytest.raises(EngineUnavailable):
        await collect(mortal, request("too soon"))
    await until(mortal.ready)
    assert mortal.restarts == restarts + 1
    assert await collect(mortal, request("after", adapter=adapter.digest)) == expected


async def test_an_engine_that_comes_back_with_another_base_serves_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Adapters and certificates are of the one that the server was started with."""
    model, other = make_checkpoint(tmp_path / "model"), make_checkpoint(tmp_path / "other", seed=1)
    weights = model / "model.safetensors"
    async with opened(model) as client:
        expected = await collect(client, request("before"))
        assert client.pid is not None
        weights.rename(tmp_path / "kept")
        (other / "model.safetensors").rename(weights)
        os.kill(client.pid, signal.SIGKILL)
        await until(lambda: client.restarts >= 3)
        assert "it has loaded another base than this server was started with" in caplog.text
        assert not client.ready()
        with pytest.raises(EngineUnavailable):
            await collect(client, request("other"))
        (tmp_path / "kept").rename(weights)
        await until(client.ready)
        assert await collect(client, request("after")) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_the_engine_asks_for_huge_pages_unless_the_user_said_otherwise(
    client: EngineClient, mortal: EngineClient
) -> None:
    for asked, value in ((client, 1), (mortal, 0)):
        environment = Path(f"/proc/{asked.pid}/environ").read_bytes().split(b"\0")
        assert f"GLIBC_TUNABLES=glibc.malloc.hugetlb={value}".encode() in environment


async def test_a_stopped_engine_is_not_ready(mortal: EngineClient) -> None:
    await until(lambda: mortal.status is not None)
    assert mortal.ready() and mortal.pid is not None
    os.kill(mortal.pid, signal.SIGSTOP)
    try:
        await until(lambda: not mortal.ready())
    finally:
        os.kill(mortal.pid, signal.SIGCONT)
    await until(mortal.ready)


@pytest.mark.parametrize("turns", range(6))
async def test_stopping_while_the_process_is_being_made(model: Path, turns: int) -> None:
    client = EngineClient(EngineConfig(model=str(model), num_kv_blocks=64, num_threads=1))
    start = asyncio.create_task(client.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    begun = time.monotonic()
    await client.stop(grace=60)
    assert time.monotonic() - begun < 50
    start.cancel()
    assert client.pid is None or not Path(f"/proc/{client.pid}").exists()


async def test_a_model_that_cannot_be_served_says_why(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["MambaForCausalLM"], "model_type": "mamba"}')
    with pytest.raises(EngineStartError, match="Mamba"):
        await EngineClient(EngineConfig(model=str(tmp_path))).start()


async def test_a_process_that_cannot_be_started_ends_the_first_start_in_words(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_spawn(monkeypatch, times=1)
    client = EngineClient(EngineConfig(model=str(model)))
    with pytest.raises(EngineStartError, match=r"could not be started: .*Too many open files"):
        await asyncio.wait_for(client.start(), 240)
    await client.stop()


async def test_a_process_that_cannot_be_started_again_is_tried_once_more(
    mortal: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_spawn(monkeypatch, times=1)
    restarts = mortal.restarts
    assert mortal.pid is not None
    os.kill(mortal.pid, signal.SIGKILL)
    await until(lambda: mortal.restarts == restarts + 2 and mortal.ready())
    assert len(await collect(mortal, request("after"))) == 8


async def test_stopping_ends_running_requests(mortal: EngineClient) -> None:
    """The last one that needs the process."""
    messages: list[Tokens] = []

    async def listen() -> None:
        async for message in mortal.generate(request("cut", max_tokens=4000)):
            messages.append(message)

    task = asyncio.create_task(listen())
    await until(lambda: len(messages) > 2)
    await mortal.stop()
    await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 60)
    assert mortal.state is EngineState.STOPPED
    assert messages[-1].finish_reason is FinishReason.ABORT


def fail_to_spawn(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    spawn, left = subprocess.Popen, [OSError(24, "Too many open files")] * times

    def fail_first(*arguments: Any, **settings: Any) -> subprocess.Popen[bytes]:
        if left:
            raise left.pop()
        return spawn(*arguments, **settings)

    monkeypatch.setattr(subprocess, "Popen", fail_first)
